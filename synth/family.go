package synth

// family is what models of one architecture have in common.
type family struct {
	arch     string // general.architecture
	pre      string // tokenizer.ggml.pre
	specials []string
	bos, eos int // among the special tokens
	pad      int
	template string

	keys    func(*maker) // of the architecture, beyond those of all
	ffnNorm string       // name of the norm before the feed-forward
	mixer   func(m *maker, p string, layer int)
	beside  func(m *maker, p string, layer int) // tensors beside the routed experts; nil: none

	predictNorm string // last norm of a block of multi-token prediction
}
