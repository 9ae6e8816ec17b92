package cni

import (
	"context"
	"log/slog"
)

// discard is a slog.Handler that discards all records, like slog.DiscardHandler.
// slog.DiscardHandler needs Go 1.24, and the go directive of this module would then
// require that of importers.
type discard struct{}

func (discard) Enabled(context.Context, slog.Level) bool  { return false }
func (discard) Handle(context.Context, slog.Record) error { return nil }
func (d discard) WithAttrs([]slog.Attr) slog.Handler      { return d }
func (d discard) WithGroup(string) slog.Handler           { return d }
