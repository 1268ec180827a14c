package prefetch

// calibration turns buckets into probabilities: how often an expert of a bucket that was not in memory when it was named
// was used. Those in memory are left out, because they are the frequent ones and nobody reads them. Every layer has cells
// of its own, which begin with what all layers together know.
type calibration struct {
	all   [kinds][buckets]cell
	layer [][kinds][buckets]cell
}

type cell struct{ seen, used float32 }

const (
	// What nothing is known about is used with this probability, as sure as from so many cases: too rarely to be read.
	priorChance, priorWeight = 0.2, 4
	// All layers weigh as much as so many cases of one.
	layerWeight = 8
	// Counts are halved when they reach these, so that old cases fade.
	layerFull, allFull = 256, 4096
)

func newCalibration(layers int) *calibration {
	return &calibration{layer: make([][kinds][buckets]cell, layers)}
}

func (c *calibration) learn(layer, kind int, bucket uint8, hit bool) {
	c.all[kind][bucket].add(hit, allFull)
	c.layer[layer][kind][bucket].add(hit, layerFull)
}

func (c *cell) add(hit bool, full float32) {
	if c.seen >= full {
		c.seen, c.used = c.seen/2, c.used/2
	}
	c.seen++
	if hit {
		c.used++
	}
}

// chance is between 0 and 1.
func (c *calibration) chance(layer, kind int, bucket uint8) float32 {
	a, l := &c.all[kind][bucket], &c.layer[layer][kind][bucket]
	p := (a.used + priorChance*priorWeight) / (a.seen + priorWeight)
	return (l.used + p*layerWeight) / (l.seen + layerWeight)
}
