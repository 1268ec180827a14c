package iotest

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/epq-uring/epq-uring/uring"
)

// Report is the outcome of a run. Its JSON has fio's names where the same is meant.
type Report struct {
	Time    int64          `json:"timestamp"`
	Path    string         `json:"filename"`
	Jobs    []Job          `json:"jobs"`
	Verdict *Verdict       `json:"verdict,omitempty"` // not of a null device alone
	Expert  *ExpertVerdict `json:"expert,omitempty"`  // of whole experts
	// Interrupted: not all of the time was measured.
	Interrupted bool         `json:"interrupted,omitempty"`
	Lost        []uring.Loss `json:"-"`
	Tool        *Job         `json:"null,omitempty"` // the same on a device that does nothing: what measuring costs
}

// Job is one combination as it was measured.
type Job struct {
	Name     string            `json:"jobname"`
	Options  map[string]string `json:"job options"`
	Fio      string            `json:"fio_command"`
	FioNote  string            `json:"fio_note,omitempty"`
	UserCPU  float64           `json:"usr_cpu"` // per cent of one CPU, of the whole process
	SysCPU   float64           `json:"sys_cpu"`
	Read     Read              `json:"read"`
	InFlight int64             `json:"bytes_in_flight"`
	CPU      float64           `json:"cpu_s_per_gb"` // seconds of CPU per 1e9 bytes
	Spread   float64           `json:"spread"`       // (max - min) / usual bandwidth, in windows of 25 ms
	Slow     float64           `json:"slow_share"`   // of the windows, those below half of the usual
	Verify   *Verified         `json:"verify,omitempty"`

	job *job
}

// Read is fio's object of the same name.
type Read struct {
	IOBytes   int64   `json:"io_bytes"`
	IOKiB     int64   `json:"io_kbytes"`
	BWBytes   int64   `json:"bw_bytes"`
	BW        int64   `json:"bw"` // KiB/s
	IOPS      float64 `json:"iops"`
	Runtime   int64   `json:"runtime"` // ms
	TotalIOs  int64   `json:"total_ios"`
	Slat      Times   `json:"slat_ns"`
	Clat      Times   `json:"clat_ns"`
	Lat       Times   `json:"lat_ns"`
	BWMin     int64   `json:"bw_min"` // KiB/s, of the windows
	BWMax     int64   `json:"bw_max"`
	BWMean    float64 `json:"bw_mean"`
	BWSamples int     `json:"bw_samples"`
}

// Times are latencies in ns.
type Times struct {
	Min        int64              `json:"min"`
	Max        int64              `json:"max"`
	Mean       float64            `json:"mean"`
	Stddev     float64            `json:"stddev"`
	N          int64              `json:"N"`
	Percentile map[string]float64 `json:"percentile,omitempty"`
}

// Verified counts the patterns of 4096 bytes that were looked at.
type Verified struct {
	Blocks  int64   `json:"blocks"`
	Errors  int64   `json:"errors"`
	Covered float64 `json:"covered"` // share of the file, at most 1
	Wrong   []Wrong `json:"wrong,omitempty"`
}

// percentiles are those that fio reports.
var percentiles = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99}

func (h *histogram) times(percent bool) Times {
	t := Times{Min: h.min, Max: h.max, Mean: h.mean(), Stddev: h.deviation(), N: h.n}
	if percent {
		t.Percentile = map[string]float64{}
		for _, p := range percentiles {
			t.Percentile[fmt.Sprintf("%.6f", p)] = h.percentile(p)
		}
	}
	return t
}

// result puts the tally of a job into fio's words.
func (j *job) result(path string, size int64) Job {
	t := &j.tally
	seconds := max(t.elapsed.Seconds(), 1e-9)
	r := Job{
		Name: fmt.Sprintf("%s-%s-%d-%d", j.backend, j.opt.RW, j.bs, j.depth), Options: j.options(path), Fio: j.fio(path, size), FioNote: j.fioNote(),
		UserCPU: 100 * t.user.Seconds() / seconds, SysCPU: 100 * t.system.Seconds() / seconds,
		InFlight: j.inFlight(), CPU: t.cpu(), Spread: t.spread(), Slow: t.slow(), job: j,
	}
	// The rates follow from the milliseconds that are reported, as fio's do.
	ms := max(1, t.elapsed.Round(time.Millisecond).Milliseconds())
	r.Read = Read{
		IOBytes: t.bytes, IOKiB: t.bytes >> 10, BWBytes: t.bytes * 1000 / ms, BW: t.bytes * 1000 / ms >> 10, IOPS: float64(t.reads) * 1000 / float64(ms),
		Runtime: ms, TotalIOs: t.reads, Slat: t.slat.times(false), Clat: t.clat.times(true), Lat: t.lat.times(false), BWSamples: len(t.windows),
	}
	for i, w := range t.windows {
		rate := int64(float64(w)/window.Seconds()) >> 10
		if i == 0 || rate < r.Read.BWMin {
			r.Read.BWMin = rate
		}
		r.Read.BWMax = max(r.Read.BWMax, rate)
		r.Read.BWMean += float64(rate) / float64(len(t.windows))
	}
	if j.opt.Verify {
		r.Verify = &Verified{Blocks: t.blocks, Errors: t.errors, Covered: min(1, float64(t.blocks)*patternBytes/float64(max(1, size))), Wrong: t.wrong}
	}
	return r
}

func (j *job) options(path string) map[string]string {
	m := map[string]string{
		"filename": path, "rw": j.opt.RW, "bs": strconv.FormatInt(j.bs, 10), "iodepth": strconv.Itoa(j.depth), "numjobs": strconv.Itoa(j.opt.NumJobs),
		"direct": bit(j.opt.Direct != uring.DirectOff), "hugepages": bit(j.huge), "backend": j.backend,
		"runtime": strconv.FormatFloat(j.opt.Runtime.Seconds(), 'f', -1, 64), "time_based": "1",
	}
	if j.backend == "ring" {
		m["fixedbufs"], m["registerfiles"], m["sqthread_poll"] = bit(j.opt.FixedBufs), bit(j.opt.RegisterFiles), bit(j.opt.SQPoll)
	}
	return m
}

// WriteText prints the report for people: a table, the command lines of fio, the verdict.
func (r *Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "backend\tpages\tbs\tiodepth\tin flight\tGB/s\tIOPS\tlat mean us\tp50\tp99\tCPU s/GB\tspread\t\n")
	for _, j := range r.Jobs {
		j.row(w)
	}
	if r.Tool != nil {
		r.Tool.row(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Tool != nil {
		fmt.Fprintln(out, "the null row reads nothing: it is what measuring itself costs")
	}
	note := ""
	for _, j := range r.Jobs {
		fmt.Fprintln(out, j.Fio)
		if note == "" {
			note = j.FioNote
		}
		if v := j.Verify; v != nil {
			fmt.Fprintf(out, "%s: %d blocks verified (%.0f %% of the file), %d wrong\n", j.Name, v.Blocks, 100*v.Covered, v.Errors)
		}
	}
	if note != "" {
		fmt.Fprintln(out, note)
	}
	if r.Verdict != nil {
		fmt.Fprint(out, r.Verdict.Text())
	}
	if r.Expert != nil {
		fmt.Fprint(out, r.Expert.Text())
	}
	return nil
}

func (j *Job) row(w io.Writer) {
	pages := "4k"
	if j.job.huge {
		pages = "huge"
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.3f\t%.0f\t%.0f\t%.0f\t%.0f\t%.4f\t%.2f\t\n", j.job.backend, pages, sizeWord(j.job.bs), strconv.Itoa(j.job.depth),
		sizeWord(j.InFlight), float64(j.Read.BWBytes)/1e9, j.Read.IOPS, j.Read.Lat.Mean/1e3, j.job.tally.clat.percentile(50)/1e3,
		j.job.tally.clat.percentile(99)/1e3, j.CPU, j.Spread)
}

// sizeWord writes a size as fio takes it: 128k, 1m, 1234.
func sizeWord(n int64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "g"}, {20, "m"}, {10, "k"}} {
		if n >= 1<<u.shift {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(int64(1)<<u.shift), 'f', 1, 64), ".0") + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
