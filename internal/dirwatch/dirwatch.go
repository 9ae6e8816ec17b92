// Package dirwatch notices which files of a directory have changed, by inotify(7).
package dirwatch
