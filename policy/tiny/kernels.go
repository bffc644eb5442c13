package tiny

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// gonum starts goroutines from four blocks of 64×64 of the result on, and cuts
// its inner loops short there. Products are therefore handed over in pieces
// below that; parallelism is over sequences instead (see shard.go).
const (
	pieceRows = 64
	pieceCols = 192
)

// product computes c = a·b (+ c when add), c [m,n]; b is [k,n], or [n,k] when
// tB, and a is [m,k], or [k,m] when tA. Leading dimensions are explicit.
//
// Each row of c depends only on its row of a, with an order of summation that
// does not depend on m: a row's result is the same whatever else is in the batch.
func product(tA, tB bool, m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int, add bool) {
	impl := blas32.Implementation()
	ta, tb, beta := blas.NoTrans, blas.NoTrans, float32(0)
	if tA {
		ta = blas.Trans
	}
	if tB {
		tb = blas.Trans
	}
	if add {
		beta = 1
	}
	for i := 0; i < m; i += pieceRows {
		mi := min(pieceRows, m-i)
		ai := a[i*lda:]
		if tA {
			ai = a[i:]
		}
		for j := 0; j < n; j += pieceCols {
			nj := min(pieceCols, n-j)
			bj := b[j:]
			if tB {
				bj = b[j*ldb:]
			}
			impl.Sgemm(ta, tb, mi, nj, k, 1, ai, lda, bj, ldb, beta, c[i*ldc+j:], ldc)
		}
	}
}

// dots says whether a product is computed as dot products over k (gonum NT)
// and not as scaled row sums over n (gonum NN). The longer axis is the faster.
// Dot products need rows aligned alike for a fixed order of summation.
func dots(n, k int) bool { return k >= n && k%4 == 0 }

// apply computes y [rows,out] = x [rows,in]·Wᵀ, or adds it to y.
func (m *Model) apply(l linear, x, y []float32, rows int, add bool) {
	if dots(l.out, l.in) {
		product(false, true, rows, l.out, l.in, x, l.in, m.w[l.w:l.w+l.out*l.in], l.in, y, l.out, add)
		return
	}
	product(false, false, rows, l.out, l.in, x, l.in, m.t[l.t:l.t+l.out*l.in], l.out, y, l.out, add)
}

// applyBack computes dx [rows,in] = dy [rows,out]·W.
func (m *Model) applyBack(l linear, dy, dx []float32, rows int) {
	if dots(l.in, l.out) {
		product(false, true, rows, l.in, l.out, dy, l.out, m.t[l.t:l.t+l.out*l.in], l.out, dx, l.in, false)
		return
	}
	product(false, false, rows, l.in, l.out, dy, l.out, m.w[l.w:l.w+l.out*l.in], l.in, dx, l.in, false)
}

// transpose writes src [rows,cols] as dst [cols,rows].
func transpose(dst, src []float32, rows, cols int) {
	for i := range rows {
		for j, v := range src[i*cols : (i+1)*cols] {
			dst[j*rows+i] = v
		}
	}
}

// rmsnorm writes y = x·w/√(mean(x²)+eps) for each row of width d, and the
// inverse root of each row into inv. Zhang and Sennrich, arXiv 1910.07467.
func rmsnorm(y, inv, x, w []float32, d int, eps float64) {
	w = w[:d]
	for r := range inv {
		xr, yr := x[r*d:r*d+d], y[r*d:r*d+d]
		s := float32(1 / math.Sqrt(float64(dot(xr, xr))/float64(d)+eps))
		inv[r] = s
		for i, v := range xr {
			yr[i] = v * s * w[i]
		}
	}
}

// rmsnormBack adds to dx the gradient through y = x·inv·w, and to dw that of the weight.
func rmsnormBack(dx, dw, dy, x, inv, w []float32, d int) {
	w, dw = w[:d], dw[:d]
	for r, s := range inv {
		xr, dyr, dxr := x[r*d:r*d+d], dy[r*d:r*d+d], dx[r*d:r*d+d]
		var sum float32
		for i, g := range dyr {
			gx := g * xr[i]
			dw[i] += gx * s
			sum += gx * w[i]
		}
		k := sum * s * s * s / float32(d)
		for i, g := range dyr {
			dxr[i] += g*w[i]*s - xr[i]*k
		}
	}
}

// swiglu writes act = silu(gate)·up and keeps sig = σ(gate); gu rows hold gate then up, each of width f.
func swiglu(act, sig, gu []float32, rows, f int) {
	for r := range rows {
		g, u := gu[r*2*f:r*2*f+f], gu[r*2*f+f:r*2*f+2*f]
		a, s := act[r*f:r*f+f], sig[r*f:r*f+f]
		for i, x := range g {
			v := 1 / (1 + exp32(-x))
			s[i] = v
			a[i] = x * v * u[i]
		}
	}
}

// swigluBack writes the gradient of gate and up over gu's layout.
func swigluBack(dgu, dact, sig, gu []float32, rows, f int) {
	for r := range rows {
		g, u := gu[r*2*f:r*2*f+f], gu[r*2*f+f:r*2*f+2*f]
		dg, du := dgu[r*2*f:r*2*f+f], dgu[r*2*f+f:r*2*f+2*f]
		s := sig[r*f : r*f+f]
		for i, da := range dact[r*f : r*f+f] {
			x, v := g[i], s[i]
			du[i] = da * x * v
			dg[i] = da * u[i] * v * (1 + x*(1-v))
		}
	}
}

// dot returns Σ a·b with four running sums.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// axpy adds alpha·x to y.
func axpy(alpha float32, x, y []float32) {
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a, b := x[i:i+4:i+4], y[i:i+4:i+4]
		b[0] += alpha * a[0]
		b[1] += alpha * a[1]
		b[2] += alpha * a[2]
		b[3] += alpha * a[3]
	}
	for ; i < len(x); i++ {
		y[i] += alpha * x[i]
	}
}

// exp32 returns eˣ within 2 units in the last place: Cody and Waite reduction
// to |r| ≤ ln2/2, then the polynomial of Cephes' expf.
func exp32(x float32) float32 {
	if x > 88 {
		x = 88
	}
	if x < -87 {
		return 0
	}
	const magic = 12582912 // 1.5·2²³: adding it rounds to an integer
	k := x*1.44269504 + magic
	n := int32(math.Float32bits(k)) - 0x4b400000
	k -= magic
	r := x - k*0.693359375
	r += k * 2.12194440e-4
	p := float32(1.9875691500e-4)
	p = p*r + 1.3981999507e-3
	p = p*r + 8.3334519073e-3
	p = p*r + 4.1665795894e-2
	p = p*r + 1.6666665459e-1
	p = p*r + 5.0000001201e-1
	return (p*r*r + r + 1) * math.Float32frombits(uint32(n+127)<<23)
}
