package udx

import (
	"math"
	"time"
)

const (
	initialPackets = 10
	minPackets     = 4
	maxWindow      = 16 << 20
	cubicC         = 0.4
	cubicBeta      = 0.7
)

// cubic computes how many bytes may be in flight: the congestion control of RFC 9438. Slow start also ends
// when the round trip time grows, as in RFC 9406. Methods are called with the stream's lock held.
type cubic struct {
	mss       int     // payload of a full packet
	cwnd      float64 // packets
	ssthresh  float64
	wMax      float64
	epoch     time.Time // when the current growth began, or zero
	k         float64
	wEst      float64
	roundMin  time.Duration // least round trip time of this round
	lastMin   time.Duration // and of the last one
	roundLeft float64       // packets until the round ends
	samples   int
	before    *cubic // the state before the last loss
}

func newCubic(mss int) *cubic {
	return &cubic{mss: mss, cwnd: initialPackets, ssthresh: math.Inf(1), roundLeft: initialPackets}
}

// window returns the congestion window in bytes.
func (c *cubic) window() int { return int(c.cwnd * float64(c.mss)) }

// acked reports acknowledged bytes. Limited means that the window, not the writer, limited the sender.
func (c *cubic) acked(bytes int, limited bool, rtt, minRTT time.Duration, now time.Time) {
	packets := float64(bytes) / float64(c.mss)
	c.round(packets, rtt)
	if !limited || c.window() >= maxWindow {
		return
	}
	if c.cwnd < c.ssthresh {
		c.cwnd += packets
		return
	}
	if c.epoch.IsZero() {
		c.epoch = now
		c.wEst = c.cwnd
		c.wMax = max(c.wMax, c.cwnd)
		c.k = math.Cbrt((c.wMax - c.cwnd) / cubicC)
	}
	t := now.Sub(c.epoch).Seconds() + minRTT.Seconds()
	target := c.wMax + cubicC*math.Pow(t-c.k, 3)
	target = min(max(target, c.cwnd), 1.5*c.cwnd)
	c.wEst += 3 * (1 - cubicBeta) / (1 + cubicBeta) * packets / c.cwnd
	if c.wEst > target {
		c.cwnd = max(c.cwnd, c.wEst)
		return
	}
	c.cwnd += (target - c.cwnd) / c.cwnd * packets
}

// round tracks the round trip time and ends slow start when a queue builds up.
func (c *cubic) round(packets float64, rtt time.Duration) {
	if rtt > 0 && (c.roundMin == 0 || rtt < c.roundMin) {
		c.roundMin = rtt
	}
	c.samples++
	const least, most = 4 * time.Millisecond, 16 * time.Millisecond
	if c.cwnd < c.ssthresh && c.samples >= 8 && c.lastMin > 0 &&
		c.roundMin > c.lastMin+min(max(c.lastMin/8, least), most) {
		c.ssthresh = c.cwnd
	}
	if c.roundLeft -= packets; c.roundLeft <= 0 {
		c.roundLeft, c.lastMin, c.roundMin, c.samples = c.cwnd, c.roundMin, 0, 0
	}
}

// lost reports a loss, at most once per window.
func (c *cubic) lost() {
	old := *c
	old.before = nil
	c.before = &old
	c.epoch = time.Time{}
	if c.cwnd < c.wMax { // another flow needs bandwidth
		c.wMax = c.cwnd * (1 + cubicBeta) / 2
	} else {
		c.wMax = c.cwnd
	}
	c.cwnd = max(c.cwnd*cubicBeta, minPackets)
	c.ssthresh = c.cwnd
}

// spurious reports that the last loss was none: the packet arrived late.
func (c *cubic) spurious() {
	if c.before == nil {
		return
	}
	c.cwnd, c.ssthresh, c.wMax = max(c.cwnd, c.before.cwnd), c.before.ssthresh, c.before.wMax
	c.before = nil
}

// timedOut reports a retransmission timeout.
func (c *cubic) timedOut() {
	c.before = nil
	c.epoch = time.Time{}
	c.wMax = c.cwnd
	c.ssthresh = max(c.cwnd*cubicBeta, minPackets)
	c.cwnd = minPackets
}

// rate returns the bytes per second to send, given the smoothed round trip time.
func (c *cubic) rate(srtt time.Duration) float64 {
	gain := 1.25
	if c.cwnd < c.ssthresh {
		gain = 2
	}
	return gain * c.cwnd * float64(c.mss) / max(srtt.Seconds(), 1e-6)
}
