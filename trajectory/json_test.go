package trajectory

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRowJSON(t *testing.T) {
	steps := newSteps(trapID, 2, 3, fixedRand())
	raw, err := RowJSON(steps[2])
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(raw, &got))
	require.Len(t, got, len(Columns(Steps)))
	require.Equal(t, "assistant", got["role"])
	require.Nil(t, got["tool_result"])
	require.Nil(t, got["stop_match"])
	require.InDelta(t, 3e6, got["time"].(map[string]any)["decode_ns"], 0)
	require.Equal(t, []any{map[string]any{"start": 0.0, "length": 10.0, "policy_version": 3.0, "kv_version_min": nil, "engine_replica": "engine-0"}}, got["policy_spans"])
	require.Len(t, got["message_hash"], 32)
	require.Equal(t, "2026-11-03T10:00:00.000123Z", got["created_at"])

	raw, err = RowJSON(newVerdict(trapID, 1))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &got))
	require.Nil(t, got["step_rewards"])
	require.InDelta(t, 1, got["reward"], 0)

	raw, err = RowJSON(newEpisode(1, 0, steps))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &got))
	require.Equal(t, []any{}, got["sidecars"])
	require.Nil(t, got["infra_error"])
}
