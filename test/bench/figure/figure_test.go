package figure

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLine(t *testing.T) {
	for want, l := range map[string]Line{
		"a                                     2.5 ms                 <=4  ok":    New("a", 2.5, "ms", AtMost(4)),
		"a                                       4 ms                 <=4  ok":    New("a", 4, "ms", AtMost(4)),
		"a                                    4.01 ms                 <=4  short": New("a", 4.01, "ms", AtMost(4)),
		"a                                    4.01 ms                 <=4  noisy": New("a", 4.01, "ms", AtMost(4)).Noisy(),
		"a                                       3 ms                 <=4  ok":    New("a", 3, "ms", AtMost(4)).Noisy(),
		"a                                   44958 tokens/s       >=15000  ok":    New("a", 44958.4, "tokens/s", AtLeast(15000)),
		"a                                    1.49 ratio            >=1.5  short": New("a", 1.49, "ratio", AtLeast(1.5)),
		"a                                  0.0036 cores           <=0.02  ok":    New("a", 0.0036, "cores", AtMost(0.02)),
		"a                                     NaN distance        <=0.06  short": New("a", math.NaN(), "distance", AtMost(0.06)),
		"a                                     100 MiB            <=1536  ok":     New("a", 100, "MiB", AtMost(1536)),
	} {
		require.Equal(t, strings.Fields(want), strings.Fields(l.String()))
		require.Equal(t, strings.HasSuffix(want, "short"), l.Fails(), want)
	}
	require.Len(t, New("sandbox_use_cpu_no_command", 3.25, "ms", AtMost(4)).String(), len(New("x", 123456, "tokens/s", AtLeast(100000)).String()))
}

// A figure that is not a number is never ok.
func TestNoFigure(t *testing.T) {
	require.False(t, New("a", math.Inf(1), "ratio", AtLeast(1)).OK())
	require.False(t, New("a", math.NaN(), "ratio", AtLeast(1)).OK())
}
