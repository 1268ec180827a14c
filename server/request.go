package server

import (
	"math"
	"strconv"

	"github.com/epq-uring/epq-uring/engine"
)

// Limits on what one request may ask for; generous beside what clients send. A few bytes of a body become a kilobyte of what a
// template sees, so the largest body alone does not bound memory.
const (
	maxMessages    = 1 << 14 // and calls of tools in them
	maxTools       = 1 << 12
	maxKwargs      = 1 << 10 // variables for the template
	maxBias        = 1 << 18 // tokens with a bias: as many as the largest vocabularies have
	maxStops       = 64
	maxStopBytes   = 16 << 10 // of all stop strings together
	maxTopLogprobs = 20       // as OpenAI
)

// generation holds the fields that chat and raw completions have in common.
type generation struct {
	engine.Request
	limited      bool // the request has a limit of its own
	stream       bool
	includeUsage bool
}

func newGeneration(defaults engine.Request) generation { return generation{Request: defaults} }

// field reads one member that both kinds of request know. Unknown ones are ignored, as clients
// send what servers of other makers understand.
func (g *generation) field(key string, v value) (err error) {
	s := &g.Sampling
	switch key {
	case "temperature":
		s.Temperature, err = v.float()
	case "top_p":
		s.TopP, err = v.float()
	case "min_p":
		s.MinP, err = v.float()
	case "top_k":
		s.TopK, err = v.small()
	case "repeat_penalty", "repetition_penalty":
		s.RepeatPenalty, err = v.float()
	case "repeat_last_n":
		s.RepeatLastN, err = v.small()
	case "presence_penalty":
		s.PresencePenalty, err = v.float()
	case "frequency_penalty":
		s.FrequencyPenalty, err = v.float()
	case "seed":
		s.Seed, err = v.integer()
	case "logit_bias":
		s.LogitBias, err = logitBias(v)
	case "max_tokens", "max_completion_tokens":
		err = g.limit(v)
	case "n", "best_of":
		err = one(v)
	case "stop":
		g.Stop, err = stops(v)
	case "ignore_eos":
		g.IgnoreEOS, err = v.boolean()
	case "stream":
		g.stream, err = v.boolean()
	case "stream_options":
		err = v.members(func(key string, v value) (err error) {
			if key == "include_usage" {
				g.includeUsage, err = v.boolean()
			}
			return err
		})
	}
	return err
}

// small is an integer that fits an int32, so that sums with it cannot overflow.
func (v value) small() (int, error) {
	n, err := v.integer()
	if err == nil && (n < math.MinInt32 || n > math.MaxInt32) {
		err = badRequest(v.path, "%s is out of range: %d", v.path, n)
	}
	return int(n), err
}

// limit takes the smaller of max_tokens and max_completion_tokens.
func (g *generation) limit(v value) error {
	n, err := v.integer()
	if err != nil {
		return err
	}
	if n <= 0 {
		return badRequest(v.path, "%s is %d, must be 1 or above; leave it out to go to the end of the context", v.path, n)
	}
	if n = min(n, math.MaxInt32); !g.limited || int(n) < g.MaxTokens {
		g.MaxTokens, g.limited = int(n), true
	}
	return nil
}

func one(v value) error {
	n, err := v.integer()
	if err == nil && n != 1 {
		err = badRequest(v.path, "%s is %d, only 1 is supported: send the request again for another answer", v.path, n)
	}
	return err
}

func stops(v value) ([]string, error) {
	if v.raw[0] == '"' {
		s, err := v.text()
		if err == nil && len(s) > maxStopBytes {
			err = badRequest(v.path, "%s has %d bytes, at most %d are supported", v.path, len(s), maxStopBytes)
		}
		return []string{s}, err
	}
	if v.raw[0] != '[' {
		return nil, v.mustBe("a string or a list of strings")
	}
	var list []string
	bytes := 0
	err := v.items(func(i int, item value) error {
		s, err := item.text()
		if err != nil {
			return err
		}
		if bytes += len(s); i >= maxStops || bytes > maxStopBytes {
			return badRequest(v.path, "%s is too long: at most %d strings and %d bytes are supported", v.path, maxStops, maxStopBytes)
		}
		list = append(list, s)
		return nil
	})
	return list, err
}

// logitBias reads {"token id": bias}.
func logitBias(v value) (map[int32]float32, error) {
	bias := map[int32]float32{}
	err := v.members(func(key string, v value) error {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return badRequest("logit_bias", "logit_bias has the key %q, must be a token id", shorten([]byte(key)))
		}
		if bias[int32(id)], err = v.float(); err == nil && len(bias) > maxBias {
			err = badRequest("logit_bias", "logit_bias names more than %d tokens", maxBias)
		}
		return err
	})
	return bias, err
}

// topLogprobs reads the number of alternatives.
func (g *generation) topLogprobs(v value) error {
	n, err := v.integer()
	if err != nil {
		return err
	}
	if n < 0 || n > maxTopLogprobs {
		return badRequest(v.path, "%s is %d, must be between 0 and %d", v.path, n, maxTopLogprobs)
	}
	g.Sampling.TopLogprobs = int(n)
	return nil
}
