// Package durable lets a built-in plugin wait for the record of its attachment.
// The record may still be on its way to the disk when the plugin starts; the
// plugin waits just before it makes anything that survives a power cut.
package durable

import "context"

type key struct{}

// With returns a context in which [Await] calls wait. wait returns when the
// record is on the disk, and may be called any number of times.
func With(ctx context.Context, wait func() error) context.Context {
	return context.WithValue(ctx, key{}, wait)
}

// Await waits until the record is on the disk, and returns an error if it cannot
// be written. It returns nil if the context has no record.
func Await(ctx context.Context) error {
	wait, ok := ctx.Value(key{}).(func() error)
	if !ok {
		return nil
	}
	return wait()
}
