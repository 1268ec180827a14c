package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/epq-uring/epq-uring/gguf"
)

// The metadata this package reads.
const (
	keyModel  = "tokenizer.ggml.model"
	keyPre    = "tokenizer.ggml.pre"
	keyTokens = "tokenizer.ggml.tokens"
	keyTypes  = "tokenizer.ggml.token_type"
	keyMerges = "tokenizer.ggml.merges"
	keyAddBOS = "tokenizer.ggml.add_bos_token"
	keyBOS    = "tokenizer.ggml.bos_token_id"
)

// endKeys name tokens that end an answer: end of sequence, turn, message.
var endKeys = []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}

// endTexts are control tokens that end an answer whether the file says so or not; the last two begin another's turn.
var endTexts = []string{"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|role_end|>",
	"<|return|>", "<|call|>", "<|end|>", "<｜end▁of▁sentence｜>", "<end_of_turn>", "[EOS]", "[EOT]",
	"<|user|>", "<|observation|>"}

// New makes the tokenizer of a file. Errors wrap ErrVocab or ErrUnsupported, or are the file's own where a key has the
// wrong type.
func New(f *gguf.File) (*Tokenizer, error) {
	t := &Tokenizer{bos: -1, classes: classes()}
	t.encoders.New = func() any { return t.newEncoder() }
	for _, load := range []func(*gguf.File) error{t.loadPre, t.loadTokens, t.loadSpecial} {
		if err := load(f); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tokenizer) loadPre(f *gguf.File) error {
	model, _, err := f.String(keyModel)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if model != "gpt2" {
		return fmt.Errorf("%w: %s is %q, known is \"gpt2\" (byte-level BPE)", ErrUnsupported, keyModel, model)
	}
	name, ok, err := f.String(keyPre)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	known := strings.Join(Known(), ", ")
	if !ok {
		return fmt.Errorf("%w: %s is missing and no default is safe; known are %s", ErrUnsupported, keyPre, known)
	}
	if t.pre, ok = pretokenizers[name]; !ok {
		return fmt.Errorf("%w: %s is %q, known are %s", ErrUnsupported, keyPre, name, known)
	}
	return nil
}

func (t *Tokenizer) loadTokens(f *gguf.File) error {
	tokens, _, err := f.Strings(keyTokens)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if len(tokens) == 0 {
		return fmt.Errorf("%w: %s is missing or empty", ErrVocab, keyTokens)
	}
	t.size = len(tokens)
	if err := t.loadTypes(f); err != nil {
		return err
	}
	merges, ok, err := f.Strings(keyMerges)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if !ok {
		return fmt.Errorf("%w: %s is missing", ErrVocab, keyMerges)
	}
	x := newIndex(t, len(tokens)+256)
	if err := t.addTokens(tokens, x); err != nil {
		return err
	}
	for b := range 256 {
		t.bytes[b] = x.symbol([]byte{byte(b)})
	}
	if err := t.addMerges(merges, x); err != nil {
		return err
	}
	if t.pre.wholeFirst {
		t.whole = x
	}
	return nil
}

func (t *Tokenizer) loadTypes(f *gguf.File) error {
	types, ok, err := f.Ints(keyTypes)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if ok && len(types) != t.size {
		return fmt.Errorf("%w: %s has %d entries, %s has %d", ErrVocab, keyTypes, len(types), keyTokens, t.size)
	}
	t.types = slices.Repeat([]uint8{typeNormal}, t.size)
	for i, x := range types {
		if x < 0 || x > typeByte {
			return fmt.Errorf("%w: %s[%d] is %d, types are 0 to %d", ErrVocab, keyTypes, i, x, typeByte)
		}
		t.types[i] = uint8(x)
	}
	return nil
}

// addTokens stores the bytes of every token. All but control tokens can be found by merges.
func (t *Tokenizer) addTokens(tokens []string, x *index) error {
	total := 0
	for _, s := range tokens {
		total += len(s)
	}
	if total > math.MaxInt32 {
		return fmt.Errorf("%w: %s holds %d bytes, the limit is %d", ErrVocab, keyTokens, total, math.MaxInt32)
	}
	t.text = make([]byte, 0, total)
	t.ends, t.longest = make([]uint32, 0, len(tokens)+256), 1
	for id, s := range tokens {
		plain := false
		switch t.types[id] {
		case typeNormal, typeByte, typeUndefined:
			t.text, plain = appendBytes(t.text, s)
		default:
			t.text = append(t.text, s...)
			_, plain = appendBytes(nil, s)
			plain = plain && t.types[id] == typeUser
		}
		t.longest = max(t.longest, len(t.text)-int(last(t.ends)))
		t.ends = append(t.ends, uint32(len(t.text)))
		if plain {
			plain = x.add(int32(id))
		}
		switch {
		case !plain && t.types[id] == typeNormal:
			t.types[id] = typeRaw
		case t.types[id] == typeControl && (s == "<think>" || s == "</think>"):
			t.types[id] = typeTag
		}
	}
	return nil
}

// addMerges reads "left right" by rank. A merge need not make a token: such symbols have numbers from t.size on.
func (t *Tokenizer) addMerges(merges []string, x *index) error {
	t.merges = newMergeTable(len(merges))
	var pair []byte // left and right, one behind the other
	for rank, m := range merges {
		cut := 0
		if len(m) > 1 {
			cut = strings.IndexByte(m[1:], ' ') + 1
		}
		if cut == 0 || cut == len(m)-1 {
			return fmt.Errorf("%w: %s[%d] is %q, want two tokens with a space between", ErrVocab, keyMerges, rank, m)
		}
		var ok, ok2 bool
		pair, ok = appendBytes(pair[:0], m[:cut])
		n := len(pair)
		pair, ok2 = appendBytes(pair, m[cut+1:])
		if !ok || !ok2 {
			continue // not of the byte alphabet: no text can reach it
		}
		val := uint64(rank)<<32 | uint64(uint32(x.symbol(pair)))
		t.merges.add(x.part(pair[:n]), x.part(pair[n:]), val)
	}
	return nil
}

func (t *Tokenizer) loadSpecial(f *gguf.File) error {
	t.special = newSpecials(t)
	bos, ok, err := t.id(f, keyBOS)
	if err != nil {
		return err
	}
	if ok {
		t.bos = bos
	}
	add, given, err := f.Bool(keyAddBOS)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if add && !ok {
		return fmt.Errorf("%w: %s is true, %s is missing", ErrVocab, keyAddBOS, keyBOS)
	}
	t.addBOS = ok && (add || !given && t.pre.addBOS)
	t.loadChannels()
	return t.loadEnd(f)
}

// loadChannels makes the tokens that divide an answer into channels text in answers.
func (t *Tokenizer) loadChannels() {
	channel, ok1 := t.control("<|channel|>")
	message, ok2 := t.control("<|message|>")
	if !ok1 || !ok2 {
		return
	}
	tags := []int32{channel, message}
	for _, text := range []string{"<|start|>", "<|constrain|>"} {
		if id, ok := t.control(text); ok {
			tags = append(tags, id)
		}
	}
	for _, id := range tags {
		t.types[id] = typeTag
	}
}

func (t *Tokenizer) loadEnd(f *gguf.File) error {
	for _, key := range endKeys {
		id, ok, err := t.id(f, key)
		if err != nil {
			return err
		}
		if ok && !t.IsEnd(id) {
			t.end = append(t.end, id)
		}
	}
	for _, text := range endTexts {
		if id, ok := t.control(text); ok && !t.IsEnd(id) {
			t.end = append(t.end, id)
		}
	}
	// Where turns are tagged with roles, a tag in an answer begins somebody else's turn.
	_, tagged := t.control("<|role_end|>")
	if role, ok := t.control("<role>"); ok && tagged && !t.IsEnd(role) {
		t.end = append(t.end, role)
	}
	// Where a model has both of these, <|end|> only ends a message inside its turn.
	_, ret := t.control("<|return|>")
	_, call := t.control("<|call|>")
	if end, ok := t.control("<|end|>"); ok && ret && call {
		t.end = slices.DeleteFunc(t.end, func(id int32) bool { return id == end })
	}
	return nil
}

// id reads the number of a token and checks that there is such a token.
func (t *Tokenizer) id(f *gguf.File, key string) (int32, bool, error) {
	id, ok, err := f.Uint(key)
	if err != nil {
		return 0, false, fmt.Errorf("tokenizer: %w", err)
	}
	if ok && id >= uint64(t.size) {
		return 0, false, fmt.Errorf("%w: %s is %d, the vocabulary has %d tokens", ErrVocab, key, id, t.size)
	}
	return int32(id), ok, nil
}

// control finds a control token by its text.
func (t *Tokenizer) control(text string) (int32, bool) {
	i, ok := slices.BinarySearch(t.special.texts, text)
	if !ok || t.special.always[i] {
		return 0, false
	}
	return t.special.ids[i], true
}

// byteOf maps the characters that stand for bytes in a byte-level vocabulary to byte + 1: printable ASCII and Latin-1
// stand for themselves, the other 68 bytes are U+0100 to U+0143 in their order.
var byteOf = func() (m [0x144]uint16) {
	next := 0x100
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			m[b] = uint16(b) + 1
		} else {
			m[next] = uint16(b) + 1
			next++
		}
	}
	return m
}()

// appendBytes adds the bytes a vocabulary entry stands for; characters outside of the alphabet are kept as they are,
// and plain is false.
func appendBytes(dst []byte, s string) (out []byte, plain bool) {
	plain = true
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if int(r) < len(byteOf) && byteOf[r] != 0 {
			dst = append(dst, byte(byteOf[r]-1))
		} else {
			dst = append(dst, s[i:i+n]...)
			plain = false
		}
		i += n
	}
	return dst, plain
}

// last is the last element, or 0.
func last(ends []uint32) uint32 {
	if len(ends) == 0 {
		return 0
	}
	return ends[len(ends)-1]
}
