package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/server"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:                      "serve",
		Usage:                     "answer over HTTP, as OpenAI's API does",
		DisableSliceFlagSeparator: true,
		Description:               "epq-uring serve -m model.gguf --ram 8GiB --port 22222\ncurl localhost:22222/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'",
		Flags: append(append(append(modelFlagsBut("json"), samplingFlags()...), absentServeFlags()...),
			&cli.StringFlag{Name: "host", Value: "127.0.0.1", Usage: "address to listen at", Sources: env("host", "HOST", "LLAMA_ARG_HOST")},
			&cli.IntFlag{Name: "port", Value: 22222, Usage: "port to listen at", Sources: env("port", "PORT", "LLAMA_ARG_PORT")},
			&cli.IntFlag{Name: "parallel", Aliases: []string{"np"}, Value: 1, Usage: "requests answered side by side", Sources: env("parallel", "LLAMA_ARG_N_PARALLEL")},
			&cli.IntFlag{Name: "queue", Value: 64, Usage: "requests that may wait", Sources: env("queue")},
			&cli.StringFlag{Name: "api-key-file", Usage: "`FILE` with keys, one a line; a request must bring one", Sources: env("api-key-file", "LLAMA_ARG_API_KEY_FILE")},
			&cli.StringSliceFlag{Name: "cors", Usage: "origins of web pages that may call, with commas; * for all", Sources: env("cors")},
			&cli.StringFlag{Name: "max-body", Value: "16MiB", Usage: "largest request body", Sources: env("max-body")},
			&cli.StringFlag{Name: "tls-cert", Aliases: []string{"ssl-cert-file"}, Usage: "PEM `FILE`", Sources: env("tls-cert", "LLAMA_ARG_SSL_CERT_FILE")},
			&cli.StringFlag{Name: "tls-key", Aliases: []string{"ssl-key-file"}, Usage: "PEM `FILE`", Sources: env("tls-key", "LLAMA_ARG_SSL_KEY_FILE")},
		),
		Action: serve,
	}
}

func serve(ctx context.Context, c *cli.Command) (err error) {
	o, err := options(c)
	if err != nil {
		return err
	}
	so, err := serverOptions(c)
	if err != nil {
		return err
	}
	// The server bounds the queue; what it lets in must never be refused behind it.
	o.Parallel, o.Queue = so.Parallel, so.Parallel+c.Int("queue")
	warmStart(c, &o)
	// One large body at a time: its bytes, the strings in it, the prompt made of them and its tokens.
	o.RequestBytes = 4 * so.MaxBody
	// A taken port is found before a model is loaded; meanwhile /health says that it is loading.
	l, err := net.Listen("tcp", net.JoinHostPort(c.String("host"), strconv.Itoa(c.Int("port"))))
	if err != nil {
		return fmt.Errorf("cannot listen: %w; choose another --port", err)
	}
	s := server.New(nil, so)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	e, err := open(ctx, c, o)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // stopped while loading: nothing ran, nothing failed
		_ = s.Shutdown(ctx) // whoever asked was told that the model is loading
		return nil
	}
	if err != nil {
		return errors.Join(err, s.Shutdown(ctx))
	}
	defer closing(e, &err)
	s.Ready(serverEngine{e})
	scheme := "http"
	if so.TLSCert != "" {
		scheme = "https"
	}
	fmt.Fprintf(c.Root().ErrWriter, "listening at %s://%s\n", scheme, l.Addr())
	return waitAndStop(ctx, s, served)
}

// waitAndStop serves until a signal; then running streams finish. A second signal ends the program as if it had never caught
// one: at once, however long the batch at hand would still take.
func waitAndStop(ctx context.Context, s *server.Server, served chan error) error {
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	if err := s.Shutdown(context.Background()); err != nil {
		return err
	}
	return <-served
}

// mostBody keeps what the plan counts for bodies far from overflow; a budget refuses much less.
const mostBody = 1 << 40

func serverOptions(c *cli.Command) (server.Options, error) {
	def := engine.Request{MaxTokens: c.Int("predict"), Sampling: sampling(c), Stop: c.StringSlice("stop"), IgnoreEOS: c.Bool("ignore-eos")}
	if err := def.Sampling.Validate(math.MaxInt32); err != nil {
		return server.Options{}, err
	}
	o := server.Options{
		CORS: list(strings.Join(c.StringSlice("cors"), ",")), Parallel: c.Int("parallel"), Queue: c.Int("queue"), Default: &def,
		TLSCert: c.String("tls-cert"), TLSKey: c.String("tls-key"), Log: serverLog(c),
	}
	if o.Parallel < 1 || o.Queue < 0 {
		return o, fmt.Errorf("--parallel is %d and --queue %d, allowed are 1 and 0 or more: %w", o.Parallel, o.Queue, errUsage)
	}
	if o.Queue == 0 {
		o.Queue = -1 // to the server 0 is the default
	}
	var err error
	if o.MaxBody, err = engine.ParseSize(c.String("max-body")); err != nil || o.MaxBody < 1 || o.MaxBody > mostBody {
		return o, fmt.Errorf("--max-body is %q, wanted is a size from 1 to %d bytes: %w", c.String("max-body"), mostBody, errUsage)
	}
	if o.TLSCert != "" || o.TLSKey != "" { // read again by the server; what is wrong with them is said before a model is loaded
		if _, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey); err != nil {
			return o, fmt.Errorf("--tls-cert %q, --tls-key %q: %w: both must be PEM files", o.TLSCert, o.TLSKey, err)
		}
	}
	if path := c.String("api-key-file"); path != "" {
		if o.APIKeys, err = server.ReadAPIKeys(path); err != nil {
			return o, err
		}
	}
	return o, nil
}

// serverLog takes the server's own faults, with -v also what goes wrong with clients' connections.
func serverLog(c *cli.Command) zerolog.Logger {
	level := zerolog.InfoLevel
	if c.Bool("verbose") {
		level = zerolog.DebugLevel
	}
	return zerolog.New(c.Root().ErrWriter).Level(level).With().Timestamp().Logger()
}

// serverEngine shows the engine to the server.
type serverEngine struct{ *engine.Engine }

// Encode implements server.Engine.
func (s serverEngine) Encode(text string) ([]int32, error) { return s.EncodeText(text) }

// Token implements server.Engine.
func (s serverEngine) Token(id int32) string { return s.Tokenizer().Decode([]int32{id}, true) }

// EncodeChat implements server.Engine.
func (s serverEngine) EncodeChat(v server.Chat) (server.Prompt, error) {
	in := chat.Input{Messages: v.Messages, NoGenerationPrompt: v.NoGenerationPrompt}
	if err := decode(v.Tools, &in.Tools); err != nil {
		return server.Prompt{}, fmt.Errorf("%w: tools: %w", server.ErrMessages, err)
	}
	var kwargs map[string]json.RawMessage
	if err := decode(v.Kwargs, &kwargs); err != nil {
		return server.Prompt{}, fmt.Errorf("%w: chat_template_kwargs: %w", server.ErrMessages, err)
	}
	in.Kwargs = make(map[string]any, len(kwargs))
	for name, raw := range kwargs {
		in.Kwargs[name] = raw
	}
	ids, text, err := s.Engine.EncodeChat(in)
	if errors.Is(err, chat.ErrTemplate) {
		err = fmt.Errorf("%w: %w", server.ErrMessages, err)
	}
	return server.Prompt{Tokens: ids, Splitter: s.Chat().Answer(text), Stop: s.Chat().Stops()}, err
}

func decode(raw json.RawMessage, to any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, to)
}
