package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/embedcni/cni/netns"
)

// interval is the time between two pings of one container.
const interval = 10 * time.Millisecond

// in calls f in a network namespace, of the host if path is empty. A socket belongs for life to
// the namespace that it was opened in, so only the opening must happen inside.
func in(path string, f func() error) error {
	if path == "" {
		return f()
	}
	return netns.Do(path, f)
}

// server tells everybody its name, in both families.
type server []net.Listener

// serve starts a server in a namespace.
func serve(path string, port int, name string) (s server, err error) {
	// Package net looks once whether a process can listen in both families with one socket,
	// and may do that in a namespace whose lo is down.
	for _, network := range []string{"tcp4", "tcp6"} {
		err := in(path, func() error {
			l, err := net.Listen(network, fmt.Sprint(":", port))
			if err == nil {
				s = append(s, l)
			}
			return err
		})
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	for _, l := range s {
		go answer(l, name)
	}
	return s, nil
}

func answer(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, name) // a failed write is a wrong answer at the client
		_ = conn.Close()
	}
}

func (s server) close() (err error) {
	for _, l := range s {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Question asks the server at an address.
type Question struct {
	From string // a container of the host, or empty for the host itself
	To   netip.AddrPort
}

// Ask returns the answer of a server.
func (a *Agent) Ask(q Question, reply *string) error {
	path := ""
	if q.From != "" {
		path = Spec{ID: q.From}.netNS()
	}
	var conn net.Conn
	if err := in(path, func() (err error) {
		conn, err = net.DialTimeout("tcp", q.To.String(), patience)
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	*reply = string(answer)
	return err
}

// pinger sends ICMP echo requests from a container to one address.
type pinger struct {
	conn     *icmp.PacketConn
	to       netip.Addr
	id       int
	request  icmp.Type
	reply    icmp.Type
	protocol int // for the parser
}

// lastID makes the pings of a host differ.
var lastID atomic.Uint32

func newPinger(from string, to netip.Addr) (p *pinger, err error) {
	p = &pinger{to: to, id: int(lastID.Add(1) & 0xffff), request: ipv4.ICMPTypeEcho, reply: ipv4.ICMPTypeEchoReply, protocol: 1}
	network, any := "ip4:icmp", "0.0.0.0"
	if to.Is6() {
		network, any = "ip6:ipv6-icmp", "::"
		p.request, p.reply, p.protocol = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58
	}
	err = in(Spec{ID: from}.netNS(), func() error {
		p.conn, err = icmp.ListenPacket(network, any)
		return err
	})
	return p, err
}

// send sends a request. While there is no route or no neighbour, that is an error, as it may be
// at the next request, too.
func (p *pinger) send(seq int) error {
	m := icmp.Message{Type: p.request, Body: &icmp.Echo{ID: p.id, Seq: seq & 0xffff}}
	data, err := m.Marshal(nil) // the kernel adds the checksum of IPv6
	if err == nil {
		_, err = p.conn.WriteTo(data, &net.IPAddr{IP: p.to.AsSlice()})
	}
	return err
}

// receive returns the number of the request to which an answer came until the deadline, and
// os.ErrDeadlineExceeded if none did.
func (p *pinger) receive(until time.Time) (seq int, err error) {
	if err := p.conn.SetReadDeadline(until); err != nil {
		return 0, err
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := p.conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return 0, err
		}
		if err != nil {
			continue // an error that a router has reported
		}
		m, err := icmp.ParseMessage(p.protocol, buf[:n])
		if err != nil {
			continue
		}
		if echo, ok := m.Body.(*icmp.Echo); ok && m.Type == p.reply && echo.ID == p.id {
			return echo.Seq, nil
		}
	}
}

// Way is from a container of the host to an address.
type Way struct {
	From string
	To   netip.Addr
}

// Pong is the first answer, and how long the next one took.
type Pong struct {
	RTT   time.Duration
	After time.Duration // since the first request
	Lost  int           // requests before that
}

// Ping asks until an answer comes, and then once more: the first one may have waited for the
// kernel to find its neighbours.
func (a *Agent) Ping(w Way, reply *Pong) error {
	if err := ping(w, patience, reply); err != nil {
		return err
	}
	var again Pong
	err := ping(w, patience, &again)
	reply.RTT = again.RTT
	return err
}

// ping asks until an answer comes, or the limit is over.
func ping(w Way, limit time.Duration, reply *Pong) error {
	p, err := newPinger(w.From, w.To)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	sent := []time.Time{}
	for begin := time.Now(); ; {
		now := time.Now()
		if now.Sub(begin) > limit {
			return fmt.Errorf("%s pings %s with %d requests in %v: %w", w.From, w.To, len(sent), limit, errNoAnswer)
		}
		sent = append(sent, now)
		_ = p.send(len(sent) - 1) // the next one may find a way
		seq, err := p.receive(now.Add(interval))
		if err == nil && seq < len(sent) {
			end := time.Now()
			*reply = Pong{RTT: end.Sub(sent[seq]), After: end.Sub(begin), Lost: seq}
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

var errNoAnswer = errors.New("no answer")

// Silence asks until no answer comes for a fifth of a second.
func (a *Agent) Silence(w Way, _ *int) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		switch err := ping(w, 20*interval, &Pong{}); {
		case errors.Is(err, errNoAnswer):
			return nil
		case err != nil:
			return err
		}
	}
	return fmt.Errorf("%s pings %s, which should be out of reach, and it answers", w.From, w.To)
}

// flow is a ping that goes on.
type flow struct {
	p        *pinger
	stop     chan struct{}
	stopped  chan struct{} // closed after the last request
	finished chan struct{} // closed after the last answer

	mu       sync.Mutex
	sent     int
	answered map[int]bool
}

// StartFlow begins to ping, and returns a number for StopFlow.
func (a *Agent) StartFlow(w Way, reply *int) error {
	p, err := newPinger(w.From, w.To)
	if err != nil {
		return err
	}
	f := &flow{p: p, stop: make(chan struct{}), stopped: make(chan struct{}), finished: make(chan struct{}), answered: map[int]bool{}}
	go f.send()
	go f.receive()
	a.mu.Lock()
	defer a.mu.Unlock()
	*reply = p.id
	a.flows[p.id] = f
	return nil
}

func (f *flow) send() {
	defer close(f.stopped)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for seq := 0; ; seq++ {
		_ = f.p.send(seq) // is not answered
		f.mu.Lock()
		f.sent++
		f.mu.Unlock()
		select {
		case <-f.stop:
			return
		case <-tick.C:
		}
	}
}

func (f *flow) receive() {
	defer close(f.finished)
	for {
		seq, err := f.p.receive(time.Now().Add(interval))
		f.mu.Lock()
		if err == nil {
			f.answered[seq] = true
		}
		all := len(f.answered) == f.sent
		f.mu.Unlock()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case <-f.stopped:
			if all {
				return
			}
		default:
		}
	}
}

// Flown is what a flow has seen.
type Flown struct{ Sent, Lost int }

// grace is how long answers are waited for that must come. A machine may stall.
const grace = 5 * time.Second

// Ending is a flow, and how long to wait for answers after its last request.
type Ending struct {
	ID    int
	Grace time.Duration
}

// StopFlow ends a flow.
func (a *Agent) StopFlow(e Ending, reply *Flown) error {
	a.mu.Lock()
	f := a.flows[e.ID]
	delete(a.flows, e.ID)
	a.mu.Unlock()
	if f == nil {
		return fmt.Errorf("there is no flow %d", e.ID)
	}
	close(f.stop)
	<-f.stopped
	select {
	case <-f.finished:
	case <-time.After(e.Grace):
	}
	err := f.p.conn.Close()
	<-f.finished
	*reply = Flown{Sent: f.sent, Lost: f.sent - len(f.answered)}
	return err
}

// Volley is several requests on each of many ways.
type Volley struct {
	Ways  []Way
	Times int
}

// PingMany sends the requests of each way at once, and waits for the answers.
func (a *Agent) PingMany(v Volley, reply *Flown) error {
	for _, w := range v.Ways {
		lost, err := volley(w, v.Times)
		if err != nil {
			return err
		}
		reply.Sent += v.Times
		reply.Lost += lost
	}
	return nil
}

// volley counts after a first answer, for which the kernel has to find the neighbours.
func volley(w Way, times int) (lost int, err error) {
	if err := ping(w, patience, &Pong{}); err != nil {
		return 0, err
	}
	p, err := newPinger(w.From, w.To)
	if err != nil {
		return 0, err
	}
	defer p.conn.Close()
	for seq := range times {
		if err := p.send(seq); err != nil {
			return 0, fmt.Errorf("%s pings %s: %w", w.From, w.To, err)
		}
	}
	answered := map[int]bool{}
	for end := time.Now().Add(grace); len(answered) < times; {
		seq, err := p.receive(end)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return 0, err
		}
		answered[seq] = true
	}
	return times - len(answered), nil
}
