// Package cnitest is for tests of programs that embed github.com/embedcni/cni: on real
// hosts of their own, or with a fake.
//
// # Hosts
//
// Main runs the tests of a package in namespaces of its own, as root or as any user. A
// Host is a network namespace with its own directories; at the end of a test nothing may
// be left on it. This is the whole test of a program:
//
//	const pods = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
//		{"type": "bridge", "bridge": "pods0", "isDefaultGateway": true, "ipMasq": true,
//		 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`
//
//	func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }
//
//	func TestStartAndStop(t *testing.T) {
//		host := cnitest.Host(t)
//		host.WriteConf("10-pods.conflist", pods)
//		rt := host.Runtime(cni.WithDefaultConf)
//		program := New(rt) // takes an interface with the methods that it calls
//
//		addr, err := program.Start(t.Context(), "web-1", cnitest.Container(t))
//		if err != nil || addr.String() != "10.1.0.2" {
//			t.Fatalf("started at %v: %v", addr, err)
//		}
//		// Break something: an administrator deletes the bridge.
//		if err := host.Do(exec.Command("ip", "link", "del", "pods0").Run); err != nil {
//			t.Fatal(err)
//		}
//		if err := program.Stop(t.Context(), "web-1"); err != nil {
//			t.Error(err)
//		}
//	}
//
// The plugins are built in, or the reference plugins (WithReferencePlugins), or follow a
// script (TestHost.Plugin): answer, fail, hang.
//
// # Fakes
//
// A Fake answers as a Runtime without a kernel, on every system, and fails as it is told:
//
//	func TestStartTriesAgain(t *testing.T) {
//		fake, err := cnitest.NewFake(cni.WithConfListBytes([]byte(pods)))
//		if err != nil {
//			t.Fatal(err)
//		}
//		fake.Inject(cnitest.Fault{Method: "Setup", Err: cni.ErrPluginKilled, Times: 1})
//		program := New(fake)
//		if _, err := program.Start(t.Context(), "web-1", "/run/netns/web-1"); err != nil {
//			t.Error(err)
//		}
//	}
//
// Both tests are in examples/tested, with the program.
//
// A Fake is a cni.CNI with some more verbs of a *cni.Runtime; a program declares an
// interface of the methods that it calls. A Fake knows nothing of plugins, records and
// recovery: tests about those need a Host.
//
// # Audits
//
// Audit lists the network state of a host, so that a test can show that its containers
// leave nothing, as the example of this package does. Host does that by itself.
//
// Audit needs Linux, CAP_NET_ADMIN over the network namespace, which every user has inside
// Main, and the tools iptables-save, ip6tables-save and nft; elsewhere Audit returns an
// error that is an [errors.ErrUnsupported].
package cnitest
