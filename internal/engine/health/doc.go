// Package health compares attachments with their records, and decides what to do about the
// differences.
//
//	records ─► Look.All ─► one look at the host, all containers compared ─► Container
//	              ▲                                                            │
//	              └── suspects: looked at again until nothing changed meanwhile ┘
//
//	compare ─► choose ─► fix, in order ─► compare again ─► … ─► what was repaired,
//	   ▲                     │                                   and what remains, why
//	   └── something fixed ──┘
//
// A [Look] locks no container, and repairs nothing: it is for the verdict of Health, for
// Recover, and for a guard. [Repair] decides which differences of attachments of locked
// containers are repaired, in which order, and when to stop; built-in plugins compare and
// mend them. One round is often not enough: a comparison can see that a bridge is gone, but
// not that the new one will lack an address and a port.
package health
