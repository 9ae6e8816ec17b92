// Package cnitest is for tests of programs that embed github.com/embedcni/cni: on real
// hosts of their own, or with a fake.
//
// # Hosts
//
// Main runs the tests of a package in namespaces of its own, as root or as any user. A
// Host is a network namespace with its own directories; at the end of a test nothing may
// be left on it. This is the whole test of a program:
//
//	func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }
//
//	func TestServe(t *testing.T) {
//		host := cnitest.Host(t)
//		host.WriteConf("10-pods.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
//			{"type": "bridge", "isDefaultGateway": true, "ipMasq": true,
//			 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`)
//		rt := host.Runtime()
//		if err := rt.Load(cni.WithDefaultConf); err != nil {
//			t.Fatal(err)
//		}
//		netns := cnitest.Container(t)
//
//		program := New(rt) // takes an interface with the methods that it calls
//		if err := program.Start(ctx, "web-1", netns); err != nil {
//			t.Fatal(err)
//		}
//		// … ask the program, break something …
//		if err := program.Stop(ctx, "web-1"); err != nil {
//			t.Fatal(err)
//		}
//	}
//
// The plugins are built in, or the reference plugins (WithReferencePlugins), or follow a
// script (TestHost.Plugin): answer, fail, hang.
//
// # Fakes
//
// A Fake behaves as a Runtime without a kernel, on every system, and fails as it is told:
//
//	fake, err := cnitest.NewFake(cni.WithConfListBytes(conf))
//	fake.Inject(cnitest.Fault{Verb: "ADD", Network: "pods", Err: cni.ErrPluginKilled, Times: 1})
//	program := New(fake)
//
// Contract is the suite that *cni.Runtime and Fake both pass.
//
// # Audits
//
// Audit lists the network state of a host, so that a test can show that its containers
// leave nothing. Host does that by itself.
//
//	before, err := cnitest.Audit(ctx, cnitest.Options{})
//	…                                  // attach, break, detach
//	after, err := cnitest.Audit(ctx, cnitest.Options{})
//	if leak := cnitest.Diff(before, after); leak != "" {
//		t.Error(leak)
//	}
//
// It needs Linux, CAP_NET_ADMIN over the network namespace, which every user has inside
// Main, and the tools iptables-save, ip6tables-save and nft; elsewhere Audit returns an
// error that is an [errors.ErrUnsupported].
package cnitest
