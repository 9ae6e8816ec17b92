package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/thick/internal/wire"
)

// ServeHTTP answers one request. It does not know who asks: Serve does, and a program that
// puts the handler behind a listener of its own must.
//
// The answer to /cni has status 200 with the result of ADD or VERSION, or
// without a body; 400 with an error object, or with text if the error has no code; 413 for a
// request that is too long; 503 with an error object of code 11 if the call never ran
// because of a limit or a shutdown. A POST to / is one to /cni, as shims before Multus v4.0.0
// send it, and the empty answers have an empty object. /healthz is 200, and so is /readyz until a Shutdown
// begins; then it is 500.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	o := &Observation{Path: known(r.URL.Path, wire.PathCNI, wire.PathHealth, wire.PathReady)}
	o.Method = known(r.Method, http.MethodGet, http.MethodPost)
	old := r.URL.Path == wire.PathOldCNI && o.Method == http.MethodPost
	if old {
		o.Path = wire.PathCNI
	}
	if o.Path == wire.PathCNI {
		ctx, end := s.begin(r.Context())
		defer end() // when it is answered
		r = r.WithContext(ctx)
	}
	body, contentType := s.route(o, w, r)
	if old && len(body) == 0 { // such a shim decodes each answer
		body = []byte("{}")
	}
	err := s.write(w, o.Status, contentType, body)
	if o.Err == nil && err != nil {
		o.Err = fmt.Errorf("answer: %w", err)
	}
	if o.Duration = time.Since(start); s.options.Observe != nil {
		s.options.Observe(*o)
	}
}

// known returns s if it is one of the values.
func known(s string, values ...string) string {
	for _, v := range values {
		if s == v {
			return s
		}
	}
	return ""
}

// route returns the body of the answer and its media type, and notes the rest in o.
func (s *Server) route(o *Observation, w http.ResponseWriter, r *http.Request) (body []byte, contentType string) {
	probe := o.Path == wire.PathHealth || o.Path == wire.PathReady
	switch {
	case o.Path == "":
		return plain(o, http.StatusNotFound)
	case o.Method == "", o.Method == http.MethodGet && !probe:
		return plain(o, http.StatusMethodNotAllowed)
	case o.Path == wire.PathReady && s.isDraining():
		return plain(o, http.StatusInternalServerError)
	case probe:
		o.Status = http.StatusOK
		return nil, "application/json"
	}
	body, err := s.call(o, w, r)
	if err == nil {
		o.Status = http.StatusOK
		return body, "application/json"
	}
	o.Err, o.Status, o.Code = err, statusOf(err), codeOf(err)
	return wire.EncodeError(err)
}

// codeOf returns the CNI code of an error, or 0 if it has none.
func codeOf(err error) uint {
	if said := (*types.Error)(nil); errors.As(err, &said) {
		return said.Code
	}
	return 0
}

func plain(o *Observation, status int) ([]byte, string) {
	o.Status = status
	return []byte(http.StatusText(status) + "\n"), "text/plain; charset=utf-8"
}

// neverRan is an error of a call that no Backend has seen, because of a limit or a shutdown.
type neverRan struct {
	said *types.Error
	why  error
}

func (e neverRan) Error() string   { return e.said.Error() }
func (e neverRan) Unwrap() []error { return []error{e.said, e.why} }

func statusOf(err error) int {
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, new(neverRan)):
		return http.StatusServiceUnavailable
	default:
		return http.StatusBadRequest
	}
}

func (s *Server) write(w http.ResponseWriter, status int, contentType string, body []byte) error {
	control := http.NewResponseController(w)
	if err := supported(control.SetWriteDeadline(time.Now().Add(s.limits.Transfer))); err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return err
	}
	return supported(control.Flush())
}

// call serves a request of /cni, and returns the body of a success.
func (s *Server) call(o *Observation, w http.ResponseWriter, r *http.Request) (body []byte, err error) {
	request, release, err := s.read(w, r)
	if err != nil {
		return nil, err
	}
	defer release()
	o.Verb = known(request.Env["CNI_COMMAND"], wire.Add, wire.Del, wire.Check, wire.GC, wire.Status, wire.Version)
	ctx, span := startSpan(r, o.Verb)
	o.Trace = span.SpanContext().TraceID()
	defer func() { endSpan(span, o, err) }()
	c, err := s.check(request)
	if err != nil {
		return nil, err
	}
	o.ContainerID, o.IfName, o.Network = c.ContainerID, c.IfName, c.Network
	o.Pod = c.Pod
	if c.verb == wire.Version {
		return versions()
	}
	asksItself, end := s.holds.call(c.ContainerID, c.verb, isChild(ctx))
	defer end()
	if asksItself {
		return nil, c.asksItself()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limits.Deadline,
		fmt.Errorf("no answer within %v: %w", s.limits.Deadline, context.DeadlineExceeded))
	defer cancel()
	t := s.gate.turn(c.verb, false)
	defer func() { o.Queued = t.waited }()
	return s.run(ctx, c, t)
}

// read returns the request, and a function that gives back the room that it takes.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*wire.Request, func(), error) {
	if size := r.ContentLength; size > s.limits.Request {
		return nil, nil, fmt.Errorf("%w: %d bytes, at most %d are accepted", wire.ErrTooLarge, size, s.limits.Request)
	}
	body := &intake{from: r.Body, budget: &s.bytes}
	request, err := wire.DecodeRequest(body, s.limits.Request)
	if err == nil {
		// It ends ReadTimeout: net/http notices by a read that the client has gone, and must
		// not take a deadline for that.
		err = supported(http.NewResponseController(w).SetReadDeadline(time.Time{}))
	}
	if err != nil {
		body.release()
		return nil, nil, err
	}
	return request, body.release, nil
}

// supported drops the error of a ResponseWriter that has no connection.
func supported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// run carries out a call, and returns the body of a success.
func (s *Server) run(ctx context.Context, c *call, t *turn) (body []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.logger.Error("panic while serving a CNI call", "verb", c.verb, "container", c.ContainerID, "panic", v, "stack", string(debug.Stack()))
			body, err = nil, types.NewError(types.ErrInternal, fmt.Sprintf("panic: %v", v), "")
		}
	}()
	result, err := s.inTurn(ctx, c, t)
	if err != nil {
		if said := (*types.Error)(nil); ctx.Err() != nil && !errors.As(err, &said) {
			err = tryLater("%v (%v)", err, context.Cause(ctx))
		}
		return nil, err
	}
	if c.verb != wire.Add {
		return nil, nil
	}
	return wire.EncodeResult(result, c.CNIVersion)
}

// inTurn waits for the turn of a call, and asks the Backend. While it waits for others than
// calls, it has no slot.
func (s *Server) inTurn(ctx context.Context, c *call, t *turn) (types.Result, error) {
	defer t.leave()
	if err := t.sit(); err != nil {
		return nil, err
	}
	if c.verb == wire.Add {
		end, err := s.mayAdd(ctx, c)
		if err != nil {
			return nil, refusal(err)
		}
		defer end()
	}
	planning := time.Now()
	use, err := s.plan(ctx, c)
	if err != nil {
		return nil, err
	}
	t.begin = t.begin.Add(time.Since(planning)) // it has not waited for other calls
	if err := t.enter(ctx, use); err != nil {
		return nil, err
	}
	if t.queued { // its time begins now, since no client waits
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.limits.Deadline)
		defer cancel()
	}
	return s.ask(ctx, c)
}

// plan finds what a call needs before it runs.
func (s *Server) plan(ctx context.Context, c *call) (Use, error) {
	if err := s.findUID(ctx, c); err != nil {
		return Use{}, err
	}
	if planner, ok := s.backend.(Planner); ok {
		return planner.Plan(ctx, c.verb, &c.Request)
	}
	return Use{Networks: []string{c.Network}}, nil
}

// mayAdd waits until nothing holds an ADD back: a readiness file that does not exist yet, or
// DELs of the container in the queue. Later ones wait until end is called.
func (s *Server) mayAdd(ctx context.Context, c *call) (end func(), err error) {
	for _, path := range []string{s.options.ReadinessFile, c.readinessFile} {
		if path == "" {
			continue
		}
		if err := s.files.wait(ctx, path, s.draining); err != nil {
			return nil, err
		}
	}
	return s.holds.add(ctx, c.ContainerID, s.draining)
}

// ask returns the result of ADD, and nil for other verbs.
func (s *Server) ask(ctx context.Context, c *call) (types.Result, error) {
	b, r := s.backend, &c.Request
	switch c.verb {
	case wire.Add:
		return b.Add(ctx, r)
	case wire.Del:
		return nil, b.Del(ctx, r)
	case wire.Check:
		return nil, b.Check(ctx, r)
	case wire.GC:
		return nil, b.GC(ctx, r)
	default:
		return nil, s.status(ctx, r)
	}
}

// codeNotAvailable is STATUS's "plugin is not available" (CNI specification 1.1.0, section 2).
const codeNotAvailable = 50

// status asks the Backend if ADDs are not held back.
func (s *Server) status(ctx context.Context, r *Request) error {
	if file := s.options.ReadinessFile; file != "" {
		if there, err := exists(file); err != nil {
			return err
		} else if !there {
			return types.NewError(codeNotAvailable, file+" does not exist yet", "")
		}
	}
	return s.backend.Status(ctx, r)
}

func versions() ([]byte, error) {
	var b bytes.Buffer
	err := version.All.Encode(&b)
	return b.Bytes(), err
}
