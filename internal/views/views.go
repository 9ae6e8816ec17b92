// Package views opens the views of the kernel by which containers are compared with
// their records: the kernel itself, for one container, or one dump of each host's
// namespace, for all containers whose plugins ran there.
package views
