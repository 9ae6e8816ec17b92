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
// because of a limit or a shutdown. /healthz is 200, and so is /readyz until a Shutdown
// begins; then it is 500.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	o := &Observation{Path: known(r.URL.Path, wire.PathCNI, wire.PathHealth, wire.PathReady)}
	o.Method = known(r.Method, http.MethodGet, http.MethodPost)
	if o.Path == wire.PathCNI {
		defer s.running.begin()() // until it is answered
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(s.alive, func() { cancel(context.Cause(s.alive)) })()
		r = r.WithContext(ctx)
	}
	body, contentType := s.route(o, w, r)
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
	o.Err, o.Status = err, statusOf(err)
	if said := (*types.Error)(nil); errors.As(err, &said) {
		o.Code = said.Code
	}
	return wire.EncodeError(err)
}

func plain(o *Observation, status int) ([]byte, string) {
	o.Status = status
	return []byte(http.StatusText(status) + "\n"), "text/plain; charset=utf-8"
}

// neverRan is an error of a call that no Backend has seen, because of a limit or a shutdown.
type neverRan struct{ said *types.Error }

func (e neverRan) Error() string { return e.said.Error() }
func (e neverRan) Unwrap() error { return e.said }

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
func (s *Server) call(o *Observation, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	request, size, err := s.read(w, r)
	if err != nil {
		return nil, err
	}
	defer s.bytes.give(size)
	o.Verb = known(request.Env["CNI_COMMAND"], wire.Add, wire.Del, wire.Check, wire.GC, wire.Status, wire.Version)
	c, err := s.check(request)
	if err != nil {
		return nil, err
	}
	o.ContainerID, o.IfName, o.Network = c.ContainerID, c.IfName, c.Network
	o.Pod = c.Pod
	if c.verb == wire.Version {
		return versions()
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.limits.Deadline,
		fmt.Errorf("no answer within %v: %w", s.limits.Deadline, context.DeadlineExceeded))
	defer cancel()
	waits := time.Now()
	leave, err := s.gate.enter(ctx, c.verb == wire.Add, s.readiness(c))
	o.Queued = time.Since(waits)
	if err != nil {
		return nil, neverRan{refusal(err)}
	}
	defer leave()
	return s.run(ctx, c)
}

// read returns the request, and the size that it is accounted by.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*wire.Request, int64, error) {
	size := r.ContentLength
	if size > s.limits.Request {
		return nil, 0, fmt.Errorf("%w: %d bytes, at most %d are accepted", wire.ErrTooLarge, size, s.limits.Request)
	}
	if size < 0 {
		size = s.limits.Request
	}
	if !s.bytes.take(size) {
		return nil, 0, neverRan{tryLater("too many requests: no room for %d bytes", size)}
	}
	request, err := wire.DecodeRequest(r.Body, s.limits.Request)
	if err == nil {
		// It ends ReadTimeout: net/http notices by a read that the client has gone, and must
		// not take a deadline for that.
		err = supported(http.NewResponseController(w).SetReadDeadline(time.Time{}))
	}
	if err != nil {
		s.bytes.give(size)
		return nil, 0, err
	}
	return request, size, nil
}

// supported drops the error of a ResponseWriter that has no connection.
func supported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// run asks the Backend.
func (s *Server) run(ctx context.Context, c *call) (body []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.logger.Error("panic while serving a CNI call", "verb", c.verb, "container", c.ContainerID, "panic", v, "stack", string(debug.Stack()))
			body, err = nil, types.NewError(types.ErrInternal, fmt.Sprintf("panic: %v", v), "")
		}
	}()
	result, err := s.ask(ctx, c)
	if err != nil {
		if said := (*types.Error)(nil); ctx.Err() != nil && !errors.As(err, &said) {
			err = tryLater("%v (%v)", err, context.Cause(ctx))
		}
		return nil, err
	}
	if c.verb != wire.Add {
		return nil, nil
	}
	return wire.EncodeResult(result)
}

// ask returns the result of ADD, and nil for other verbs.
func (s *Server) ask(ctx context.Context, c *call) (types.Result, error) {
	if err := s.findUID(ctx, c); err != nil {
		return nil, err
	}
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

// readiness returns a function that waits until ADD may run, or nil if nothing holds it
// back.
func (s *Server) readiness(c *call) func(context.Context) error {
	var paths []string
	for _, path := range []string{s.options.ReadinessFile, c.readinessFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	if c.verb != wire.Add || len(paths) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		for _, path := range paths {
			if err := s.files.wait(ctx, path, s.draining); err != nil {
				return err
			}
		}
		return nil
	}
}

func versions() ([]byte, error) {
	var b bytes.Buffer
	err := version.All.Encode(&b)
	return b.Bytes(), err
}
