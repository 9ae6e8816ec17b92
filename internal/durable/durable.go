// Package durable has a plugin built in wait for the record of its attachment,
// which may be on its way to the disk while the plugin is run, just before it
// makes what survives a power cut.
package durable

import "context"

type key struct{}

// With returns a context with which [Await] calls wait, which is to return when
// the record is on the disk, and may be called any number of times.
func With(ctx context.Context, wait func() error) context.Context {
	return context.WithValue(ctx, key{}, wait)
}

// Await waits until the record is on the disk, and returns an error if it does
// not get there. Without one in the context there is nothing to wait for.
func Await(ctx context.Context) error {
	wait, ok := ctx.Value(key{}).(func() error)
	if !ok {
		return nil
	}
	return wait()
}
