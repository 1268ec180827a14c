package prefetch

// calibration turns buckets into probabilities: how often an expert of a bucket that was not in memory when it was named
// was used. Those in memory are left out, because they are the frequent ones and nobody reads them. Cells begin with what
// a wider one knows: a layer's with all layers', those with all buckets of the same margin.
type calibration struct {
	margin [kinds][marginBuckets]cell
	all    [kinds][buckets]cell
	layer  [][kinds][buckets]cell
}

type cell struct{ seen, used float32 }

const (
	// What nothing is known about is used with this probability, as sure as from so many cases: too rarely to be read.
	priorChance, priorWeight = 0.2, 4
	// What a wider cell knows weighs as much as so many cases.
	widerWeight = 8
	// Counts are halved when they reach these, so that old cases fade.
	layerFull, allFull = 256, 1024
)

func newCalibration(layers int) *calibration {
	return &calibration{layer: make([][kinds][buckets]cell, layers)}
}

func (c *calibration) learn(layer, kind int, bucket uint8, hit bool) {
	c.margin[kind][bucket/historyBuckets].add(hit, allFull)
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
	p := c.margin[kind][bucket/historyBuckets].chance(priorChance, priorWeight)
	p = c.all[kind][bucket].chance(p, widerWeight)
	return c.layer[layer][kind][bucket].chance(p, widerWeight)
}

// chance is the share of hits, begun with another estimate that weighs so many cases.
func (c *cell) chance(prior, weight float32) float32 {
	return (c.used + prior*weight) / (c.seen + weight)
}
