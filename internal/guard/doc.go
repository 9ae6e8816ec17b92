// Package guard decides, from the kernel's announcements, which containers may have lost
// a part of their network, and paces the repairs. It changes nothing itself.
//
//	announcements ─► Event ─► Core.Take ─► signs ─► Index ─► suspected containers
//	                                                         │ quiet for a moment
//	           Host.Look (all), Host.Repair (one) ◄─ Task ◄──┘
//	                     │ each difference
//	                     ▼
//	                 Core.Want: repair, or leave it: of a class that was not chosen,
//	                            held, contested, not repairable
//
// A [Core] has no clock, no goroutine and no kernel: every method is given the time. A
// [Guard] is the loop around it.
//
// Only a loss is a sign: an interface that goes, is set down or leaves its bridge; an
// address or a route that is deleted. So what an ADD makes wakes nobody, and what a DEL
// deletes points at a container that is on record as being removed, which the Index does
// not have. A change of rules by another program is no sign of a container: all are
// looked at.
package guard
