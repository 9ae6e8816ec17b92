// Package whereabouts tests the library with an IPAM plugin whose store is a whole cluster's:
// whereabouts, as an executable beside the built-in bridge and macvlan.
//
// The module pins whereabouts, and builds it as it is, as a tool of this module, so that no test
// links it or a client of Kubernetes. Its store is the Kubernetes API: the etcd store of early
// versions is gone since v0.7.0. A few handlers of the test serve the requests that whereabouts
// makes, with the conflicts of the real API, and strike where a test wants it: a connection is
// cut before or after the change, an answer never comes, or the plugin is killed.
//
// TestAStruckADD and TestAStruckDEL have tables of what stays in the store. They are the
// behaviour of the pinned version; another one may need other tables.
//
// The module requires the versions that module thick/multus requires, so that the client of
// Kubernetes is compiled once for both.
package whereabouts
