// Package remote puts an inference engine behind gRPC: a server over any engine.Engine, and a client that is one.
package remote

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	rlfleetv1 "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Register serves e on s.
func Register(s grpc.ServiceRegistrar, e engine.Engine) {
	rlfleetv1.RegisterEngineServer(s, &server{e: e})
}

type server struct {
	rlfleetv1.UnimplementedEngineServer
	e engine.Engine
}

// Generate implements rlfleetv1.EngineServer.
func (s *server) Generate(ctx context.Context, r *rlfleetv1.GenerateRequest) (*rlfleetv1.GenerateResponse, error) {
	p := r.GetSampling()
	req := engine.Request{
		Session: r.GetSession(), Prompt: r.GetPrompt(), MaxTokens: int(r.GetMaxTokens()), Stop: r.GetStop(), Drawn: int(r.GetDrawn()),
		Sampling: engine.Sampling{Temperature: p.GetTemperature(), TopP: p.GetTopP(), TopK: p.GetTopK(), Seed: p.GetSeed()},
	}
	if r.Pin != nil {
		v := policy.Version(r.GetPin())
		req.Pin = &v
	}
	out, err := s.e.Generate(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &rlfleetv1.GenerateResponse{Tokens: out.Tokens, Logprobs: out.Logprobs, Cached: int32(out.Cached)}
	for _, sp := range out.Spans {
		resp.Spans = append(resp.Spans, &rlfleetv1.TokenSpan{Start: sp.Start, Length: sp.Length, Version: int64(sp.Version)})
	}
	switch out.Finish {
	case engine.FinishStop:
		resp.Finish = rlfleetv1.FinishReason_FINISH_REASON_STOP
	case engine.FinishLength:
		resp.Finish = rlfleetv1.FinishReason_FINISH_REASON_LENGTH
	}
	return resp, nil
}

// Stage implements rlfleetv1.EngineServer.
func (s *server) Stage(ctx context.Context, r *rlfleetv1.StageRequest) (*rlfleetv1.StageResponse, error) {
	if err := s.e.Stage(ctx, policy.Version(r.GetVersion()), policy.Digest(r.GetManifest())); err != nil {
		return nil, toStatus(err)
	}
	return &rlfleetv1.StageResponse{}, nil
}

// Score implements rlfleetv1.EngineServer.
func (s *server) Score(ctx context.Context, r *rlfleetv1.ScoreRequest) (*rlfleetv1.ScoreResponse, error) {
	prompts := make([][]int32, len(r.GetPrompts()))
	for i, p := range r.GetPrompts() {
		prompts[i] = p.GetTokens()
	}
	rows, err := s.e.Score(ctx, policy.Version(r.GetVersion()), prompts)
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &rlfleetv1.ScoreResponse{Rows: make([]*rlfleetv1.LogprobRow, len(rows))}
	for i, row := range rows {
		resp.Rows[i] = &rlfleetv1.LogprobRow{Logprobs: row}
	}
	return resp, nil
}

// Flip implements rlfleetv1.EngineServer.
func (s *server) Flip(ctx context.Context, r *rlfleetv1.FlipRequest) (*rlfleetv1.FlipResponse, error) {
	if err := s.e.Flip(ctx, policy.Version(r.GetVersion())); err != nil {
		return nil, toStatus(err)
	}
	return &rlfleetv1.FlipResponse{}, nil
}

// Serving implements rlfleetv1.EngineServer.
func (s *server) Serving(ctx context.Context, _ *rlfleetv1.ServingRequest) (*rlfleetv1.ServingResponse, error) {
	v, ok, err := s.e.Serving(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &rlfleetv1.ServingResponse{Live: ok, Version: int64(v)}, nil
}

// kinds is the one table between the engine's error kinds, what travels, and gRPC's codes.
var kinds = []struct {
	err  error
	kind rlfleetv1.EngineRefusal_Kind
	code codes.Code
}{
	{engine.ErrVersion, rlfleetv1.EngineRefusal_KIND_VERSION, codes.NotFound},
	{engine.ErrTooLong, rlfleetv1.EngineRefusal_KIND_TOO_LONG, codes.OutOfRange},
	{engine.ErrClosed, rlfleetv1.EngineRefusal_KIND_CLOSED, codes.Unavailable},
	{engine.ErrInvalid, rlfleetv1.EngineRefusal_KIND_INVALID, codes.InvalidArgument},
}

// toStatus turns an engine's error into a status that carries its kind.
func toStatus(err error) error {
	for _, k := range kinds {
		if !errors.Is(err, k.err) {
			continue
		}
		st, detailErr := status.New(k.code, err.Error()).WithDetails(&rlfleetv1.EngineRefusal{Kind: k.kind})
		if detailErr != nil {
			return status.Error(codes.Internal, fmt.Sprintf("engine/remote: %v: %v", err, detailErr))
		}
		return st.Err()
	}
	return status.FromContextError(err).Err() // Canceled, DeadlineExceeded, or Unknown
}
