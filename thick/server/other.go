package server

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// serveOther lets Options.Other answer a request.
func (s *Server) serveOther(o *Observation, w http.ResponseWriter, r *http.Request) {
	control, deadline := http.NewResponseController(w), time.Now().Add(s.limits.Deadline)
	err := errors.Join(supported(control.SetReadDeadline(deadline)), supported(control.SetWriteDeadline(deadline)))
	if err != nil {
		s.logger.Warn("limit the time of a client", "error", err) // it has gone
	}
	answer := &statusWriter{ResponseWriter: w}
	o.Status = http.StatusInternalServerError // if it panics
	// A handler may wait for its context only, while the client sends nothing.
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	s.options.Other.ServeHTTP(answer, r.WithContext(ctx))
	if o.Status = answer.status; o.Status == 0 {
		o.Status = http.StatusOK // as net/http answers for a handler that writes nothing
	}
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the first status that is not an interim one.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes with status 200, if there is none yet.
func (w *statusWriter) Write(data []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(data)
}

// Flush is for handlers that assert http.Flusher. A writer that cannot flush keeps its
// bytes until the handler returns.
func (w *statusWriter) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w *statusWriter) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if w.status == 0 && !errors.Is(err, http.ErrNotSupported) {
		w.status = http.StatusOK
	}
	return err
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
