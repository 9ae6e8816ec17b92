package watch

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }

const pods = `{"cniVersion": "1.1.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`

// watched is a host with a watch.
type watched struct {
	*cnitest.TestHost
	t      *testing.T
	events chan Event
	end    func()
}

func start(t *testing.T, o Options) *watched {
	host := cnitest.Host(t)
	host.WriteConf("10-pods.conflist", strings.ReplaceAll(pods, "DIR", host.Dir))
	w := &watched{host, t, make(chan Event, 100), nil}
	o.Report = func(e Event) { w.events <- e }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, host.Runtime(cni.WithDefaultConf), o) }()
	w.end = func() {
		cancel()
		expect.NoError(t, expect.Await(t, "the end of the watch", done))
	}
	if w.await(Watching); o.Repair {
		expect.Same(t, "the guard", w.await(Guard), Event{Event: Guard, Detail: "begun"})
	}
	return w
}

// await returns the next event, which must be of the kind.
func (w *watched) await(kind Kind) Event {
	w.t.Helper()
	e := expect.Await(w.t, fmt.Sprint("event ", kind), w.events)
	expect.Must(w.t, e.Event == kind, "the next event is %+v, not %s", e, kind)
	expect.That(w.t, time.Since(e.Time) < expect.Patience, "%+v has no time", e)
	e.Time = time.Time{}
	return e
}

// attach attaches a container as another program would, and awaits that.
func (w *watched) attach(rt *cni.Runtime, id, owner, addr string) (hostEnd string) {
	w.t.Helper()
	result, err := rt.Setup(w.t.Context(), id, cnitest.Container(w.t))
	expect.NoError(w.t, err)
	e := expect.Await(w.t, "attachment", w.events)
	if e.Event == Attaching { // it took longer than a file must be quiet
		e = expect.Await(w.t, "attachment", w.events)
	}
	e.Time = time.Time{}
	expect.Same(w.t, "event", e, Event{Event: Attached, ContainerID: id, Network: "pods", IfName: "eth0", Owner: owner, Addresses: []string{addr}})
	return result.Networks[0].Interfaces[1].Name
}

// remove removes a container, and awaits that.
func (w *watched) remove(rt *cni.Runtime, id string) {
	w.t.Helper()
	expect.NoError(w.t, rt.Remove(context.Background(), id, ""))
	for e := expect.Await(w.t, "removal", w.events); ; e = expect.Await(w.t, "removal", w.events) {
		if e.Event == Removed {
			expect.Same(w.t, "removed", e.ContainerID, id)
			return
		}
		expect.Must(w.t, e.Event == Detaching, "a removal has the event %+v", e)
	}
}

func (w *watched) link(name string, change func(netlink.Link) error) {
	w.t.Helper()
	expect.NoError(w.t, w.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(link)
	}))
}

// A container comes, loses its port on the bridge, gets it back by another program, and
// goes. The configuration changes.
func TestRun(t *testing.T) {
	w := start(t, Options{})
	rt := w.Runtime(cni.WithDefaultConf, cni.WithOwner("other"))
	end := w.attach(rt, "web-1", "other", "10.1.0.2/24")

	w.link(end, netlink.LinkSetNoMaster)
	lost := Event{Event: Lost, ContainerID: "web-1", Network: "pods", IfName: "eth0", Detail: "bridge port " + end + " is missing"}
	expect.Same(t, "lost", w.await(Lost), lost)
	report, err := rt.Repair(t.Context(), "web-1", cni.RepairOptions{})
	expect.NoError(t, expect.Reported(report, err))
	expect.Same(t, "back", w.await(Back), Event{Event: Back, ContainerID: "web-1", Network: "pods", IfName: "eth0", Detail: "bridge port " + end})
	expect.Same(t, "healthy", w.await(Healthy), Event{Event: Healthy, ContainerID: "web-1"})

	w.WriteConf("20-more.conflist", strings.ReplaceAll(strings.ReplaceAll(pods, "DIR", w.Dir), "pods", "more"))
	w.WriteConf("10-pods.conflist", strings.ReplaceAll(strings.ReplaceAll(pods, "DIR", w.Dir), "10.1", "10.2"))
	e := w.await(Config)
	if len(e.Added) > 0 && len(e.Changed) == 0 { // the machine was slow between the two files
		e = w.await(Config)
	}
	expect.Same(t, "changed networks", e.Changed, []string{"pods"})
	w.remove(rt, "web-1")
	w.end()
	expect.Same(t, "events after the end", len(w.events), 0)
}

// What is lost already is reported at the beginning. Those of others are not, if one owner's
// are wanted. The directory of the records may come later, and nothing happens by itself.
func TestOwner(t *testing.T) {
	w := start(t, Options{Owner: "me"})
	rt, other := w.Runtime(cni.WithDefaultConf, cni.WithOwner("me")), w.Runtime(cni.WithDefaultConf, cni.WithOwner("other"))
	_, err := other.Setup(t.Context(), "theirs", cnitest.Container(t))
	expect.NoError(t, err)
	end := w.attach(rt, "mine", "me", "10.1.0.3/24")
	w.link("pods0", netlink.LinkDel)
	for _, want := range []string{"address 10.1.0.1/24 on pods0", "bridge pods0", "bridge port " + end} {
		e := w.await(Lost)
		expect.Same(t, "container", e.ContainerID, "mine")
		expect.Same(t, "detail", e.Detail, want+" is missing")
	}
	w.end()

	again := make(chan Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, rt, Options{Owner: "me", Report: func(e Event) { again <- e }}) }()
	lost := 0
	for lost < 3 {
		if e := expect.Await(t, "what is lost already", again); e.Event == Lost {
			lost++
		}
	}
	cancel()
	expect.NoError(t, expect.Await(t, "the end", done))
	for _, rt := range []*cni.Runtime{rt, other} {
		for _, id := range []string{"mine", "theirs"} {
			expect.NoError(t, rt.Remove(t.Context(), id, ""))
		}
	}
}

// With Repair a loss is put right, and both are told.
func TestRepair(t *testing.T) {
	w := start(t, Options{Repair: true})
	rt := w.Runtime(cni.WithDefaultConf)
	end := w.attach(rt, "web-1", "watch.test", "10.1.0.2/24")
	w.link(end, netlink.LinkSetNoMaster)
	for {
		e := expect.Await(t, "repair", w.events)
		if e.Event == Guard && strings.HasPrefix(e.Detail, "repaired") {
			expect.Same(t, "container", e.ContainerID, "web-1")
			break
		}
	}
	health, err := rt.Health(t.Context(), cni.HealthOptions{})
	expect.NoError(t, err)
	expect.Same(t, "health", fmt.Sprint(health), "[web-1: healthy]")
	w.end()
	expect.NoError(t, rt.Remove(t.Context(), "web-1", ""))
}

// A look changes no file of the records, so that an idle host is looked at no more.
func TestIdle(t *testing.T) {
	host := cnitest.Host(t)
	host.WriteConf("10-pods.conflist", strings.ReplaceAll(pods, "DIR", host.Dir))
	rt := host.Runtime(cni.WithDefaultConf)
	_, err := rt.Setup(t.Context(), "web-1", cnitest.Container(t))
	expect.NoError(t, err)
	records, err := newRecordWatch(rt.GetConfig().RecordDir)
	expect.NoError(t, err)
	defer func() { expect.NoError(t, records.close()) }()
	w := &watcher{rt: rt, changed: make(chan struct{}, 1), options: Options{Report: func(e Event) { t.Errorf("event %+v", e) }}}
	w.records, err = w.readRecords()
	expect.NoError(t, err)
	expect.Same(t, "records", len(w.records), 1)
	for range 3 {
		expect.NoError(t, w.look(t.Context()))
	}
	// What the looks have changed, if anything, stands in front of this in the queue.
	expect.NoError(t, os.WriteFile(rt.GetConfig().RecordDir+"/mark", nil, 0o600))
	e := expect.Await(t, "file", records.notifier.Events)
	expect.That(t, strings.HasSuffix(e.Name, "/mark"), "a look changes %v", e)
	expect.NoError(t, os.Remove(rt.GetConfig().RecordDir+"/mark"))
	expect.NoError(t, rt.Remove(t.Context(), "web-1", ""))
}
