package remote

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	rlfleetv1 "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Client is an engine.Engine on the other end of a connection. Errors keep
// their kind; a failure without a kind is one of transport, and the gRPC status is
// in its chain.
type Client struct {
	rpc rlfleetv1.EngineClient
}

// NewClient returns a client over a connection, which stays the caller's to close.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: rlfleetv1.NewEngineClient(conn)}
}

var _ engine.Engine = (*Client)(nil)

// Generate implements engine.Generator.
func (c *Client) Generate(ctx context.Context, r engine.Request) (engine.Response, error) {
	req := &rlfleetv1.GenerateRequest{
		Session: r.Session, Prompt: r.Prompt, MaxTokens: int32(r.MaxTokens), Stop: r.Stop, Drawn: int32(r.Drawn),
		Sampling: &rlfleetv1.Sampling{Temperature: r.Sampling.Temperature, TopP: r.Sampling.TopP, TopK: r.Sampling.TopK, Seed: r.Sampling.Seed},
	}
	if r.Pin != nil {
		v := int64(*r.Pin)
		req.Pin = &v
	}
	resp, err := c.rpc.Generate(ctx, req)
	if err != nil {
		return engine.Response{}, fromStatus(ctx, "generate", err)
	}
	out := engine.Response{Tokens: resp.GetTokens(), Logprobs: resp.GetLogprobs(), Cached: int(resp.GetCached())}
	for _, s := range resp.GetSpans() {
		out.Spans = append(out.Spans, policy.Span{Start: s.GetStart(), Length: s.GetLength(), Version: policy.Version(s.GetVersion())})
	}
	switch resp.GetFinish() {
	case rlfleetv1.FinishReason_FINISH_REASON_STOP:
		out.Finish = engine.FinishStop
	case rlfleetv1.FinishReason_FINISH_REASON_LENGTH:
		out.Finish = engine.FinishLength
	default:
		return engine.Response{}, fmt.Errorf("engine/remote: generate: finish reason %d is not known", resp.GetFinish())
	}
	return out, checkResponse(out)
}

// checkResponse refuses what a caller must not record: an engine of another build may be on the other end.
func checkResponse(r engine.Response) error {
	if len(r.Logprobs) != len(r.Tokens) {
		return fmt.Errorf("engine/remote: generate: %d tokens, %d log-probabilities", len(r.Tokens), len(r.Logprobs))
	}
	if err := policy.CheckSpans(r.Spans, int32(len(r.Tokens))); err != nil {
		return fmt.Errorf("engine/remote: generate: %w", err)
	}
	return nil
}

// Stage implements engine.Engine.
func (c *Client) Stage(ctx context.Context, v policy.Version, manifest policy.Digest) error {
	if _, err := c.rpc.Stage(ctx, &rlfleetv1.StageRequest{Version: int64(v), Manifest: string(manifest)}); err != nil {
		return fromStatus(ctx, "stage", err)
	}
	return nil
}

// Score implements engine.Engine.
func (c *Client) Score(ctx context.Context, v policy.Version, prompts [][]int32) ([][]float32, error) {
	req := &rlfleetv1.ScoreRequest{Version: int64(v), Prompts: make([]*rlfleetv1.TokenRow, len(prompts))}
	for i, p := range prompts {
		req.Prompts[i] = &rlfleetv1.TokenRow{Tokens: p}
	}
	resp, err := c.rpc.Score(ctx, req)
	if err != nil {
		return nil, fromStatus(ctx, "score", err)
	}
	if len(resp.GetRows()) != len(prompts) {
		return nil, fmt.Errorf("engine/remote: score: %d rows for %d prompts", len(resp.GetRows()), len(prompts))
	}
	out := make([][]float32, len(prompts))
	for i, row := range resp.GetRows() {
		out[i] = row.GetLogprobs()
	}
	return out, nil
}

// Flip implements engine.Engine.
func (c *Client) Flip(ctx context.Context, v policy.Version) error {
	if _, err := c.rpc.Flip(ctx, &rlfleetv1.FlipRequest{Version: int64(v)}); err != nil {
		return fromStatus(ctx, "flip", err)
	}
	return nil
}

// Serving implements engine.Engine.
func (c *Client) Serving(ctx context.Context) (policy.Version, bool, error) {
	resp, err := c.rpc.Serving(ctx, &rlfleetv1.ServingRequest{})
	if err != nil {
		return 0, false, fromStatus(ctx, "serving", err)
	}
	return policy.Version(resp.GetVersion()), resp.GetLive(), nil
}

// fromStatus restores the engine's error kind, or the caller's own context error.
func fromStatus(ctx context.Context, op string, err error) error {
	st := status.Convert(err)
	for _, d := range st.Details() {
		r, ok := d.(*rlfleetv1.EngineRefusal)
		if !ok {
			continue
		}
		for _, k := range kinds {
			if r.GetKind() == k.kind {
				return fmt.Errorf("engine/remote: %s: %s: %w", op, st.Message(), k.err)
			}
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("engine/remote: %s: %w", op, ctx.Err())
	}
	return fmt.Errorf("engine/remote: %s: %w", op, err)
}
