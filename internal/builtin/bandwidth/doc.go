// Package bandwidth limits the traffic of a container's interface, in both
// directions, with token buckets (tbf). It takes the configuration of the
// reference plugin bandwidth (v1.9.1) and makes the same queues on the same
// devices, so that the CHECK and DEL of either understand the other's.
//
//	to the container    tbf on the host's end of the veth pair
//	from the container  the host's end redirects to an ifb device, which has a tbf
//
// The directions are the container's: ingress enters the container, egress
// leaves it.
package bandwidth
