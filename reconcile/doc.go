// Package reconcile is for the start of a scheduler's agent that remembers its containers:
// it compares them with the records and the kernel, and repairs or replaces those that are
// not healthy, as the agent decides.
//
//	report, err := reconcile.Run(ctx, rt, []reconcile.Expected{
//		{ContainerID: "web-1", NetNS: "/run/netns/web-1"},
//		{ContainerID: "web-2", NetNS: "/run/netns/web-2"},
//	}, reconcile.Options{Decide: func(h cni.Health) reconcile.Decision {
//		switch h.State {
//		case cni.StateBroken:
//			return reconcile.Repair
//		case cni.StateElsewhere, cni.StateNotAttached, cni.StateGone:
//			return reconcile.Replace
//		}
//		return reconcile.Report
//	}})
//
// The verdict on each is that of cni.Runtime.Health. In addition the namespace must be the
// one in which the container was attached, by the device and inode of the namespace and
// the machine's boot rather than by the path. A container that was attached again in a new
// namespace, while its task lives in the old one, is cni.StateElsewhere; so is one whose
// path leads to no network namespace.
//
//	Expected ─► rt.Health ─► Decide ─► report
//	                           ├─────► rt.Repair ──► is it where its task lives?
//	                           └─────► rt.Setup ───► which addresses has it lost?
//	rt.Attachments ─► those that nobody expects
//
// Containers on record that the call has not named are listed in Result.Unexpected, and stay as
// they are: Remove removes them, and Recover those that are dead. Call Run before Recover
// if broken containers are to be replaced rather than repaired.
package reconcile
