// Package chain runs a network's plugins as the CNI specification has it: order,
// versions, chained results, and the cache that libcni's users share.
//
// All verbs but ADD go through libcni. What it gets wrong on the way to the
// plugin and back is put right at its Exec seam: the plugin's configuration
// reaches it to the byte, and a DEL asks every plugin. An ADD is run here, as
// decoding and encoding everything anew for each plugin takes libcni longer than
// some plugins need; what is sent and what is cached is the same.
package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/plainfile"
)

// ErrNotAdded: CHECK was asked for what no ADD left a result of.
var ErrNotAdded = errors.New("was never added, or was deleted since")

// ErrInvalidResult: a plugin's result is not one.
var ErrInvalidResult = errors.New("invalid result")

// Call is one plugin to be run for one verb.
type Call struct {
	Verb   string   // CNI_COMMAND: ADD, DEL, CHECK, STATUS, GC
	Plugin string   // the type
	Stdin  []byte   // the request configuration
	Env    []string // the CNI_* variables
}

// Output is what a plugin printed on stdout.
type Output struct {
	Stdout []byte
	Valid  bool // it is known to be a result, with its version
}

// Runner finds the plugin and runs it.
type Runner func(ctx context.Context, call Call) (Output, error)

// Chain is a network and what is needed to run it. It may be used by many
// goroutines at once.
type Chain struct {
	List     *libcni.NetworkConfigList
	Path     []string // becomes CNI_PATH
	CacheDir string   // libcni's; it writes below <CacheDir>/results
	Run      Runner

	// OnResult, if set, is told of the result so far after each plugin of an
	// ADD that succeeded. An error of it fails the ADD.
	OnResult func(json.RawMessage) error

	// OnEnd, if set, is called when the last plugin of an ADD has succeeded, and
	// when the last one of a DEL has been asked. An error of it fails the ADD or
	// the DEL: the one is not cached then, and the other's cache is kept.
	OnEnd func(ctx context.Context, verb string) error
}

// Attachment names what a verb is about, all of it validated. RuntimeConf is libcni's; ConfigArgs
// are merged into the plugin's "args": {"cni": {…}} (CONVENTIONS.md).
type Attachment struct {
	libcni.RuntimeConf
	ConfigArgs map[string]any
}

// Partial is how far an Add got: the result of the last plugin that succeeded,
// which the DEL of all of them needs. Nil when none did, or when it is not
// known; then libcni's cached one takes its place.
type Partial json.RawMessage

// Add attaches. When it fails, what was attached stays until Del is called
// with the partial result.
func (c *Chain) Add(ctx context.Context, a *Attachment) (result *types100.Result, partial Partial, err error) {
	return c.AddPart(ctx, a, Part{To: len(c.List.Plugins)})
}

// Part is some of a chain's plugins: those from From up to, but without, To.
type Part struct {
	From, To int
	Result   Partial // of the plugins before From, which have run
}

// AddPart is Add, but runs only a part of the plugins, for an attachment that
// is made in two steps. An ADD whose first plugins have run must be ended with
// the rest, or deleted.
func (c *Chain) AddPart(ctx context.Context, a *Attachment, part Part) (result *types100.Result, partial Partial, err error) {
	x := &adding{c: c, a: a, last: json.RawMessage(part.Result), prev: json.RawMessage(part.Result)}
	err = guard(func() (err error) {
		result, err = x.run(ctx, part)
		return err
	})
	return result, Partial(x.last), err
}

// Del detaches: every plugin is asked, last first, and what they answer is
// joined. libcni would halt at the first error and leave the ones behind it
// unasked. A plugin gets the result of the ADD: partial, else the cached one.
// The cached result is kept unless every plugin succeeded, for the next try.
func (c *Chain) Del(ctx context.Context, a *Attachment, partial Partial) error {
	x := c.exec(a, "DEL")
	x.askAll = true
	if partial != nil {
		return c.delKnown(ctx, a, x, partial)
	}
	cached, err := c.cachedResult(a)
	if err != nil {
		// libcni does the same with what it cannot convert, but panics at some
		// of it first. Should the file stay, that is what Del returns.
		_ = os.Remove(c.cacheFile(a))
	}
	x.prevResult = cached
	return guard(func() error { return c.libcni(x, a).DelNetworkList(ctx, x.list, &a.RuntimeConf) })
}

// delKnown is Del with a result that is known, so that nobody need read what is
// cached; it is only deleted in the end.
func (c *Chain) delKnown(ctx context.Context, a *Attachment, x *exec, result Partial) error {
	x.prevResult = json.RawMessage(result)
	err := guard(func() error { return c.uncached(x).DelNetworkList(ctx, x.list, &a.RuntimeConf) })
	if err == nil {
		_ = c.Forget(a) // as libcni has it: on a disk that is read-only the attachment is gone all the same
	}
	return err
}

// Check asks the plugins whether the attachment is as it should be; result is
// what the ADD ended with, else the cached one is used. Where the network has
// CHECK at all, an attachment without a result is ErrNotAdded: the
// specification forbids to ask.
func (c *Chain) Check(ctx context.Context, a *Attachment, result Partial) error {
	x := c.exec(a, "CHECK")
	x.prevResult = json.RawMessage(result)
	return guard(func() error {
		if !c.List.DisableCheck && c.CanCheck() && x.prevResult == nil {
			if err := c.wasAdded(a); err != nil {
				return err
			}
		}
		cni := x.libcni(c)
		if x.prevResult != nil {
			cni = c.uncached(x) // what the cache says does not matter, nor whether it can be read
		}
		return cni.CheckNetworkList(ctx, x.list, &a.RuntimeConf)
	})
}

// CanCheck tells whether the configuration is of a version that has CHECK; if
// not, libcni says so in the words its callers know.
func (c *Chain) CanCheck() bool {
	ok, err := version.GreaterThanOrEqualTo(c.List.CNIVersion, "0.4.0")
	return err == nil && ok
}

// Status asks the plugins of a network of version 1.1.0 or later whether they
// can serve an ADD, and stops at the first that cannot.
func (c *Chain) Status(ctx context.Context) error {
	x := c.exec(nil, "STATUS")
	return guard(func() error { return x.libcni(c).GetStatusNetworkList(ctx, x.list) })
}

// GC asks the plugins of a network of version 1.1.0 or later to collect what
// belongs to none of the valid attachments, and returns the errors of all.
//
// libcni's GC also deletes attachments of its cache that are not valid; it is
// given no cache here, because those may be another runtime's.
func (c *Chain) GC(ctx context.Context, valid []types.GCAttachment) error {
	x := c.exec(nil, "GC")
	if valid == nil {
		valid = []types.GCAttachment{} // libcni would leave out the key
	}
	return guard(func() error { return c.uncached(x).GCNetworkList(ctx, x.list, &libcni.GCArgs{ValidAttachments: valid}) })
}

// CanGC reports whether plugins are asked in GC at all.
func (c *Chain) CanGC() bool {
	ok, err := version.GreaterThanOrEqualTo(c.List.CNIVersion, "1.1.0")
	return err == nil && ok && !c.List.DisableGC
}

// uncached is libcni with a cache that is empty, and that nothing is written to.
func (c *Chain) uncached(x *exec) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(c.Path, filepath.Join(c.CacheDir, "embedcni", "no-cache"), x)
}

// Cached returns the attachment that a was cached as by its ADD, without the
// namespace, or nil if there is no cached ADD.
func (c *Chain) Cached(a *Attachment) (*Attachment, error) {
	if data, err := plainfile.Read(c.cacheFile(a)); errors.Is(err, fs.ErrNotExist) || c.isOfAnother(data, a) {
		return nil, nil
	}
	config, rt, err := c.plain().GetNetworkListCachedConfig(c.List, &a.RuntimeConf)
	if err != nil || config == nil {
		return nil, err
	}
	return fromCache(rt)
}

// CachedNetNS returns the namespace path that the ADD of a was cached with.
// libcni's RuntimeConf does not say it, its list of attachments does.
func (c *Chain) CachedNetNS(a *Attachment) (string, error) {
	all, err := AllCached(c.CacheDir, a.ContainerID)
	if err != nil {
		return "", err
	}
	for _, one := range all {
		if one.Network == c.List.Name && one.IfName == a.IfName {
			return one.NetNS, nil
		}
	}
	return "", nil
}

// wasAdded is nil if there is a whole record of the ADD.
func (c *Chain) wasAdded(a *Attachment) error {
	cached, err := c.Cached(a)
	if err == nil && cached != nil {
		_, err = c.cachedResult(a)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s of network %q %w, as far as can be read: %w", a.IfName, c.List.Name, ErrNotAdded, err)
	case cached == nil:
		return fmt.Errorf("%s of network %q %w", a.IfName, c.List.Name, ErrNotAdded)
	}
	return nil
}

// cachedResult is the result of the ADD in the configuration's version, or nil
// if there is none.
func (c *Chain) cachedResult(a *Attachment) (result json.RawMessage, err error) {
	if c.isAnothers(a) {
		return nil, nil
	}
	err = guard(func() error {
		r, err := c.plain().GetNetworkListCachedResult(c.List, &a.RuntimeConf)
		if err != nil || r == nil {
			return err
		}
		result, err = json.Marshal(r)
		return err
	})
	return result, err
}

// plain is libcni for what runs no plugin.
func (c *Chain) plain() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(c.Path, c.CacheDir, nil)
}

// guard turns a panic into an error. Results are validated before libcni
// converts them, but its cache is a file that others write too, and one
// container's bad file must not end a daemon that looks after a thousand.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", ErrInvalidResult, p, debug.Stack())
		}
	}()
	return f()
}
