package server

import "github.com/epq-uring/epq-uring/engine"

// completionRequest is the body of POST /v1/completions: a prompt as text or as token ids.
type completionRequest struct {
	generation
	prompt string
	tokens []int32 // not nil: the prompt, as it is
}

func parseCompletion(body []byte, defaults engine.Request, vocab int) (*completionRequest, error) {
	root, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	r := &completionRequest{generation: newGeneration(defaults)}
	found := false
	err = root.members(func(key string, v value) error {
		switch key {
		case "prompt":
			found = true
			return r.setPrompt(v, vocab)
		case "logprobs":
			r.Logprobs = true
			return r.topLogprobs(v)
		case "echo":
			if echo, err := v.boolean(); err != nil || echo {
				return orElse(err, badRequest(v.path, "echo is not supported: put the prompt in front of the answer yourself"))
			}
			return nil
		case "suffix":
			if s, err := v.text(); err != nil || s != "" {
				return orElse(err, badRequest(v.path, "suffix is not supported"))
			}
			return nil
		}
		return r.field(key, v)
	})
	if err == nil && !found {
		err = badRequest("prompt", "prompt is missing")
	}
	return r, err
}

func orElse(err error, other *apiError) error {
	if err != nil {
		return err
	}
	return other
}

// setPrompt takes a string, a list of one string, a list of token ids or a list of one such list.
func (r *completionRequest) setPrompt(v value, vocab int) (err error) {
	if v.raw[0] == '"' {
		r.prompt, err = v.text()
		return err
	}
	if v.raw[0] != '[' {
		return v.mustBe("a string, a list of one string or a list of token ids")
	}
	r.tokens = []int32{}
	return v.items(func(i int, item value) error {
		if item.isNumber() {
			return r.addToken(item, vocab)
		}
		if i > 0 {
			return badRequest(v.path, "%s holds several prompts, only one is supported: send a request for each", v.path)
		}
		if item.raw[0] == '"' {
			r.prompt, err = item.text()
			r.tokens = nil
			return err
		}
		return item.items(func(_ int, item value) error { return r.addToken(item, vocab) })
	})
}

func (r *completionRequest) addToken(v value, vocab int) error {
	id, err := v.integer()
	if err == nil && (id < 0 || id >= int64(vocab)) {
		err = badRequest(v.path, "%s is %d, the vocabulary has %d tokens", v.path, id, vocab)
	}
	r.tokens = append(r.tokens, int32(id))
	return err
}
