// Package multus tests the socket of this library against Multus' thick plugin, whose form
// it has: a runtime may put either shim in front of either daemon.
//
// The module pins Multus. Its shim and its daemon are built as they are, as tools of this
// module, so that no test links Multus or a client of Kubernetes, and are started as processes.
// So is a program around its parser of annotations.
// The daemon's cluster is a few handlers of the test.
//
// Requests that the shim sends and answers that the daemon gives are kept byte for byte in
// testdata, in a directory named after the version. After an upgrade of Multus,
//
//	go test -run 'TestRequests|TestAnswers' -update
//
// writes those of the new version, and their difference from the old directory is the
// change of the form.
package multus
