// Package chain runs the plugins of a network list as the CNI specification
// requires, for every verb. It handles their order, versions, requests and
// chained results, and the cache that libcni's users share.
//
// libcni reads the cache, and is the reference in the tests: requests,
// environment, results, errors and cache files are compared with its own, for
// every version. It does not run the plugins. It would decode and encode
// configuration, result and capabilities for each plugin, which takes longer
// than some plugins need and rounds large numbers, and its DEL stops at the
// first error.
package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// ErrNotAdded: CHECK was requested for an attachment without the result of an ADD.
var ErrNotAdded = errors.New("was never added, or was deleted since")

// ErrInvalidResult: the output of a plugin is not a valid result.
var ErrInvalidResult = errors.New("invalid result")

// Output is a plugin's stdout.
type Output struct {
	Stdout []byte
	Valid  bool // it is known to be a result that states its version
}

// Runner finds a plugin and runs it.
type Runner func(ctx context.Context, call Call) (Output, error)

// Chain is a network list with everything needed to run it. It is safe for
// concurrent use.
type Chain struct {
	List     *libcni.NetworkConfigList
	Path     []string // becomes CNI_PATH
	CacheDir string   // libcni's; results are kept below <CacheDir>/results
	Run      Runner
	Uncached bool // the result of an ADD is not cached: no DEL needs it

	// OnResult, if set, is given the result so far after each successful plugin
	// of an ADD. Its error fails the ADD.
	OnResult func(json.RawMessage) error

	// OnEnd, if set, is called after the last plugin of an ADD has succeeded, and
	// after the last plugin of a DEL has been asked. Its error fails the ADD or
	// the DEL: then the ADD is not cached, and the DEL keeps the cached result.
	OnEnd func(ctx context.Context, verb string) error
}

// Attachment holds the validated parameters of a verb. RuntimeConf is libcni's;
// ConfigArgs are merged into the plugin's "args": {"cni": {…}} (CONVENTIONS.md).
type Attachment struct {
	libcni.RuntimeConf
	ConfigArgs map[string]any
}

// Partial is the result of the last successful plugin of an ADD, which the DEL
// of all plugins needs. It is nil if no plugin succeeded or the result is
// unknown; then the cached result is used.
type Partial json.RawMessage

// Del detaches the container. It asks every plugin, last first, and joins their
// errors. Each plugin gets result or, if that is nil, the cached result of the
// ADD. The cached result stays for the next attempt unless every plugin
// succeeded.
func (c *Chain) Del(ctx context.Context, a *Attachment, result Partial) error {
	if result == nil {
		cached, err := c.cached(a).result()
		if err != nil {
			_ = os.Remove(c.cached(a).path()) // as in libcni; no later DEL can use it either
		}
		result = cached
	}
	prev := c.recorded(result)
	var errs []error
	for i := len(c.List.Plugins) - 1; i >= 0; i-- {
		if err := c.ask(ctx, "DEL", i, a, prev); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s failed (delete): %w", describe(c.List.Plugins[i].Network), err))
		}
	}
	if c.OnEnd != nil {
		errs = append(errs, guard(func() error { return c.OnEnd(ctx, "DEL") }))
	}
	err := joined.Errors(errs...)
	if err == nil {
		_ = c.cached(a).Forget() // as in libcni: on a read-only disk, the attachment is gone all the same
	}
	return err
}

// Check asks the plugins, in order, whether the attachment is as it should be,
// and stops at the first error. It uses result or, if that is nil, the cached
// result of the ADD. Without a result the error is ErrNotAdded, because the
// specification forbids such a CHECK.
func (c *Chain) Check(ctx context.Context, a *Attachment, result Partial) error {
	return c.CheckSome(ctx, a, result, every)
}

// every selects all plugins of a list.
func every(int) bool { return true }

// CheckSome is Check for the plugins at some positions of the list.
func (c *Chain) CheckSome(ctx context.Context, a *Attachment, result Partial, asks func(position int) bool) error {
	switch {
	case !c.CanCheck():
		return fmt.Errorf("configuration version %q %w", c.List.CNIVersion, libcni.ErrorCheckNotSupp)
	case c.List.DisableCheck:
		return nil
	case result == nil:
		added, err := c.cached(a).added()
		if err != nil {
			return err
		}
		result = added
	}
	return c.askUntilError(ctx, "CHECK", asks, a, c.recorded(result))
}

// CheckCalls returns the calls of single plugins for CHECK. Unlike Check, it needs the
// result of the ADD.
func (c *Chain) CheckCalls(a *Attachment, result Partial) func(position int) (Call, error) {
	prev := c.recorded(result)
	return func(position int) (Call, error) { return c.call("CHECK", position, a, prev) }
}

// CanCheck reports whether the version of the configuration has CHECK.
func (c *Chain) CanCheck() bool { return c.since("0.4.0") }

// ListsInterfaces reports whether results of the configuration's version list the
// interfaces.
func (c *Chain) ListsInterfaces() bool { return c.since("0.3.0") }

// Status asks the plugins of a network of version 1.1.0 or later whether they
// can serve an ADD, and stops at the first that cannot.
func (c *Chain) Status(ctx context.Context) error {
	if !c.since("1.1.0") {
		return nil
	}
	return c.askUntilError(ctx, "STATUS", every, &Attachment{}, c.previous(nil))
}

// GC asks the plugins of a network of version 1.1.0 or later to remove
// everything that belongs to none of the valid attachments. It returns the
// errors of all plugins.
//
// libcni's GC also deletes the attachments in its cache that are not valid. This
// one does not, because they may be another runtime's.
func (c *Chain) GC(ctx context.Context, valid []types.GCAttachment) error {
	if !c.CanGC() {
		return nil
	}
	if valid == nil {
		valid = []types.GCAttachment{} // the key is required
	}
	list, err := json.Marshal(valid)
	if err != nil {
		return fmt.Errorf("valid attachments: %w", err)
	}
	var errs []error
	for i, p := range c.List.Plugins {
		// The second key is an earlier spelling, which libcni sends too.
		err := c.ask(ctx, "GC", i, &Attachment{}, c.previous(nil), member{"cni.dev/valid-attachments", list}, member{"cni.dev/attachments", list})
		if err != nil {
			errs = append(errs, fmt.Errorf("failed to GC plugin %s: %w", p.Network.Type, err))
		}
	}
	return joined.Errors(errs...)
}

// CanGC reports whether GC asks any plugin at all.
func (c *Chain) CanGC() bool { return c.since("1.1.0") && !c.List.DisableGC }

// since reports whether the configuration is of that version or a later one.
func (c *Chain) since(v string) bool {
	ok, err := version.GreaterThanOrEqualTo(c.List.CNIVersion, v)
	return err == nil && ok
}

func (c *Chain) askUntilError(ctx context.Context, verb string, asks func(position int) bool, a *Attachment, prev previous) error {
	for i := range c.List.Plugins {
		if !asks(i) {
			continue
		}
		if err := c.ask(ctx, verb, i, a, prev); err != nil {
			return err
		}
	}
	return nil
}

// ask runs one plugin for a verb that has no result.
func (c *Chain) ask(ctx context.Context, verb string, position int, a *Attachment, prev previous, added ...member) error {
	call, err := c.call(verb, position, a, prev, added...)
	if err != nil && verb == "DEL" {
		// The ADD failed for the same reason before it ran this plugin. But
		// earlier plugins ran, and must be asked.
		call, err = c.call(verb, position, &Attachment{RuntimeConf: a.RuntimeConf}, prev)
	}
	if err != nil {
		return err
	}
	return guard(func() error {
		_, err := c.Run(ctx, call)
		return err
	})
}

// describe names a plugin as libcni does.
func describe(p *types.PluginConf) string {
	if p.Name == "" {
		return fmt.Sprintf("type=%q", p.Type)
	}
	return fmt.Sprintf("type=%q name=%q", p.Type, p.Name)
}

// guard turns a panic into an error. Results are validated before they are
// converted, but other programs write the cache too, and one container's bad
// file must not end a daemon that runs a thousand.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", ErrInvalidResult, p, debug.Stack())
		}
	}()
	return f()
}
