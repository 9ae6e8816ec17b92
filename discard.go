package cni

import (
	"context"
	"log/slog"
)

// discard handles log records by doing nothing, as slog.DiscardHandler does. That
// is of Go 1.24, which the go line of this module would then demand of importers.
type discard struct{}

func (discard) Enabled(context.Context, slog.Level) bool  { return false }
func (discard) Handle(context.Context, slog.Record) error { return nil }
func (d discard) WithAttrs([]slog.Attr) slog.Handler      { return d }
func (d discard) WithGroup(string) slog.Handler           { return d }
