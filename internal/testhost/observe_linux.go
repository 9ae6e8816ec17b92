package testhost

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/embedcni/cni"
)

// Log keeps log lines without times, for comparison.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Lines returns the lines of a level.
func (l *Log) Lines(level string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := []string{}
	for line := range strings.Lines(l.buf.String()) {
		if text, ok := strings.CutPrefix(line, "level="+level+" "); ok {
			found = append(found, strings.TrimSuffix(text, "\n"))
		}
	}
	return found
}

// Logger makes a Runtime write to the log, without times and durations.
func (l *Log) Logger() cni.Opt {
	return cni.WithLogger(slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{}
			}
			return a
		},
	})))
}

// Observer keeps events without their durations.
type Observer struct {
	mu     sync.Mutex
	Events []cni.Event
}

// Observe is the function for cni.WithObserver.
func (o *Observer) Observe(_ context.Context, e cni.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Duration <= 0 {
		e.Plugin += " took no time"
	}
	e.Duration = 0
	o.Events = append(o.Events, e)
}
