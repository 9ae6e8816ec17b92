package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Server answers CNI calls. Use New to create one. It is an http.Handler, and serves a
// socket by Listen and Serve.
type Server struct {
	backend    Backend
	options    Options
	limits     Limits
	pluginDirs []string
	logger     *slog.Logger
	http       *http.Server

	gate    *gate
	bytes   budget
	files   files
	holds   holds
	running running

	conns    chan struct{}           // a token for each connection
	alive    context.Context         // ends when a Shutdown gives up
	abort    context.CancelCauseFunc // ends it
	draining chan struct{}           // closed when a Shutdown begins
	drain    sync.Once
	giveUp   time.Duration
}

// New returns a Server that asks the Backend. It is an error if an option is invalid.
func New(b Backend, o Options) (*Server, error) {
	if b == nil {
		return nil, errors.New("server: no Backend")
	}
	s := &Server{backend: b, options: o, logger: o.Logger, draining: make(chan struct{}), giveUp: giveUp}
	if s.logger == nil {
		s.logger = slog.Default()
	}
	var err error
	if s.limits, err = o.Limits.withDefaults(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if s.pluginDirs, err = cleanDirs(o.PluginDirs); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if o.UID < 0 || o.UID == nobody {
		return nil, fmt.Errorf("server: user %d cannot be told from users of other user namespaces", o.UID)
	}
	if o.ReadinessFile != "" && !filepath.IsAbs(o.ReadinessFile) {
		return nil, fmt.Errorf("server: readiness file %q is not an absolute path", o.ReadinessFile)
	}
	s.gate = newGate(s.limits, s.draining)
	s.bytes.pool = newPool(s.limits.Requests)
	s.conns = make(chan struct{}, s.limits.connections()+extra)
	s.alive, s.abort = context.WithCancelCause(context.Background())
	s.http = &http.Server{
		Handler:        s,
		ReadTimeout:    s.limits.Transfer, // until a call has been read
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
		ConnContext:    withPeer,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				<-s.conns
			}
		},
	}
	s.http.SetKeepAlivesEnabled(false) // a shim makes one call and ends
	return s, nil
}

const (
	// nobody is the user that the kernel shows for one of another user namespace
	// (/proc/sys/kernel/overflowuid).
	nobody = 65534
	// maxHeader is the size of the longest head of a request. Clients send some hundred
	// bytes.
	maxHeader = 16 << 10
	// extra is how many connections are accepted beside those of calls that run or wait:
	// for probes, and for calls that are refused.
	extra = 64
)

// Serve answers the clients of a unix socket until a Shutdown, or until the listener
// fails. It closes the listener. It returns http.ErrServerClosed after a Shutdown. Clients
// other than root and Options.UID are disconnected; so are all clients of a listener that
// knows no credentials. Connections beyond those that the limits need wait in the
// kernel.
//
// A plugin that the Backend has started must not ask for its own container: the call would wait
// for itself. It is refused with code 7, "invalid network config", but for DEL, which has
// nothing to detach. A process that is runtime and daemon in one may call by shims that it
// starts: then the first ADD of such a shim comes while no other ADD of its container is under way.
func (s *Server) Serve(l net.Listener) error {
	return s.http.Serve(&guarded{Listener: l, server: s, closed: make(chan struct{})})
}

// giveUp is how long a Shutdown waits for calls that it has cancelled.
const giveUp = 5 * time.Second

// Shutdown ends Serve. From its beginning, /readyz fails, and ADDs that do not run yet are
// refused with code 11; other calls are served. When no call is under way any more, it
// closes the listeners and connections, and returns nil.
//
// When ctx ends first, it cancels the calls under way, gives them five seconds to undo what
// they have to, and returns an error if some had to be cancelled. A call that ignores its
// context goes on.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain.Do(func() { close(s.draining) })
	left := s.running.wait(ctx)
	if left == 0 {
		if err := s.http.Shutdown(ctx); err == nil || ctx.Err() == nil {
			return err
		}
		left = s.running.wait(ctx)
	}
	why := context.Cause(ctx)
	s.abort(fmt.Errorf("the server shut down: %w", why))
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.giveUp)
	defer cancel()
	stuck := s.running.wait(late)
	err := s.http.Close()
	if left > 0 {
		err = joined.Errors(fmt.Errorf("%d calls were cancelled, %d of them have not ended: %w", left, stuck, why), err)
	}
	return err
}

// begin counts a call until end is called. The call is cancelled when a Shutdown gives up.
func (s *Server) begin(ctx context.Context) (_ context.Context, end func()) {
	ended := s.running.begin()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.alive, func() { cancel(context.Cause(s.alive)) })
	return ctx, func() {
		stop()
		cancel(nil)
		ended()
	}
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// guarded accepts a limited number of connections, of users that may call.
type guarded struct {
	net.Listener
	server *Server
	closed chan struct{}
	once   sync.Once
}

// Accept returns the next connection of a user that may call.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		select {
		case g.server.conns <- struct{}{}:
		case <-g.closed:
			return nil, net.ErrClosed
		}
		conn, err := g.Listener.Accept()
		if err != nil {
			<-g.server.conns
			return nil, err
		}
		who, err := peerOf(conn)
		if err == nil && (who.uid == 0 || who.uid == g.server.options.UID) {
			return conn, nil
		}
		g.server.logger.Warn("refused a client", "uid", who.uid, "pid", who.pid, "error", joined.Errors(err, conn.Close()))
		<-g.server.conns
	}
}

// Close ends Accept.
func (g *guarded) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.Listener.Close()
}

// peer is the process that made a connection.
type peer struct{ uid, pid int }

// peerKey is that of a context's peer.
type peerKey struct{}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	who, err := peerOf(conn)
	if err != nil {
		return ctx // of a listener of the program's own
	}
	return context.WithValue(ctx, peerKey{}, who)
}

// isChild reports whether the client of a call is a process that this one has started.
func isChild(ctx context.Context) bool {
	who, known := ctx.Value(peerKey{}).(peer)
	return known && isDescendant(who.pid)
}
