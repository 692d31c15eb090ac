package udx

const (
	overhead   = 20 + 8 + headerSize // of IP, UDP and the packet
	baseMTU    = 1200
	largestMTU = 1500
	mtuStep    = 32
	mtuTries   = 3
	maxPadding = 255

	maxPayload = largestMTU - overhead
)

// mtuSearch finds the path's MTU with ever larger data packets, padded between header and payload.
type mtuSearch struct {
	payload int // payload of a full packet in bytes
	trying  bool
	tries   int
	over    bool
}

func newMTUSearch() mtuSearch { return mtuSearch{payload: baseMTU - overhead, over: !probesMTU} }

// probe returns the padded size of a segment to send as a probe, or 0.
func (m *mtuSearch) probe(g *segment) int {
	size := min(m.payload+mtuStep, maxPayload)
	if m.over || m.trying || size-len(g.payload) > maxPadding || size <= len(g.payload) {
		return 0
	}
	m.trying = true
	return size
}

func (m *mtuSearch) succeeded(size int) bool {
	m.trying, m.tries = false, 0
	m.over = size >= maxPayload
	if size <= m.payload {
		return false
	}
	m.payload = size
	return true
}

func (m *mtuSearch) failed() {
	m.trying = false
	m.tries++
	m.over = m.tries >= mtuTries
}
