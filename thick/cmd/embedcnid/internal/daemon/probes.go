package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// probes answers /healthz, /readyz and /metrics at a TCP address. These change nothing and
// name no container, so that whoever reaches the address may ask.
type probes struct {
	log     *slog.Logger
	handler http.Handler
	address string
	server  *http.Server // nil without an address
}

func newProbes(log *slog.Logger, c *conditions, gatherer prometheus.Gatherer) probes {
	answer := func(w http.ResponseWriter, good bool, text string) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if !good {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, text) // the client may have gone
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, text := c.report()
		answer(w, ready, text)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}))
	return probes{log: log, handler: mux}
}

// listen moves the server to an address. If it cannot listen there, it stays.
func (p *probes) listen(address string) error {
	old := p.address
	if address == old {
		return nil
	}
	err := p.move(address)
	if errors.Is(err, syscall.EADDRINUSE) && old != "" { // maybe by this one: 127.0.0.1 is in the way of 0.0.0.0
		p.close()
		if err = p.move(address); err != nil {
			err = errors.Join(err, p.move(old))
		}
	}
	if err != nil {
		return fmt.Errorf("http.address: %w", err)
	}
	return nil
}

// move begins to serve at an address, and ends it at the one before.
func (p *probes) move(address string) error {
	var next *http.Server
	if address != "" {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		next = &http.Server{
			Handler: p.handler, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
			ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
		}
		go func() {
			if err := next.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				p.log.Error("probes and metrics", "address", address, "error", err)
			}
		}()
	}
	p.close()
	p.server, p.address = next, address
	return nil
}

func (p *probes) close() {
	if p.server == nil {
		return
	}
	if err := p.server.Close(); err != nil {
		p.log.Warn("close the server of probes and metrics", "error", err)
	}
	p.server, p.address = nil, ""
}
