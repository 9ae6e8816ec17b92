// Package tuning changes sysctls of a container's namespace, and attributes of
// an interface that another plugin has made. It takes the configuration of the
// reference plugin tuning (v1.9.1), and keeps the former attributes in the same
// file, so that the DEL of either restores them.
//
// Sysctls are not restored: they end with the namespace.
package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// defaultDataDir is the reference plugin's default directory for backups.
const defaultDataDir = "/run/cni/tuning"

// attributes are values for attributes of an interface: those to set, or the former ones in
// the format of the reference plugin's file. A missing one changes nothing.
//
//	{
//	 "mac": "0a:58:0a:01:00:02",
//	 "promisc": false,
//	 "mtu": 1500
//	}
type attributes struct {
	Mac      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	Mtu      int    `json:"mtu,omitempty"`
	Allmulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
}

// of returns the values for the attributes that another list has.
func (a attributes) of(other attributes) attributes {
	mine, others := reflect.ValueOf(&a).Elem(), reflect.ValueOf(other)
	for i := range mine.NumField() {
		if others.Field(i).IsZero() {
			mine.Field(i).SetZero()
		}
	}
	return a
}

// backupFile returns the reference plugin's path of the backup.
func backupFile(dataDir, id, ifName string) string {
	return filepath.Join(dataDir, id+"_"+ifName+".json")
}

// unfinished is the path of the file while it is written, so that nobody sees
// half of it.
func unfinished(file string) string { return file + ".tmp" }

func saveBackup(file string, b attributes) error {
	data, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("dataDir: %w", err)
	}
	err = plainfile.Write(unfinished(file), data, 0o600)
	if err == nil {
		err = os.Rename(unfinished(file), file)
	}
	if err != nil {
		return fmt.Errorf("keep the former state of the interface: %w", joined.Errors(err, remove(unfinished(file))))
	}
	return nil
}

// loadBackup reads the file. If the file is missing or invalid, there is nothing
// to restore.
func loadBackup(file string) (b attributes, found bool, err error) {
	data, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return attributes{}, false, nil
	}
	if err != nil {
		return attributes{}, false, fmt.Errorf("former state of the interface: %w", err)
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return attributes{}, false, nil
	}
	return b, true, nil
}

// File returns the path of an attachment's backup. It reads only that from the
// plugin's configuration, of which the rest may be invalid.
func File(config []byte, id, ifName string) string {
	var n struct {
		DataDir string `json:"dataDir"`
	}
	if json.Unmarshal(config, &n) != nil || n.DataDir == "" {
		n.DataDir = defaultDataDir
	}
	return backupFile(n.DataDir, id, ifName)
}

// Pending reports whether a backup exists, or the beginning of one.
func Pending(file string) bool {
	_, err := os.Lstat(file)
	_, begun := os.Lstat(unfinished(file))
	return !errors.Is(err, fs.ErrNotExist) || !errors.Is(begun, fs.ErrNotExist)
}

// Discard deletes a backup.
func Discard(file string) error {
	return joined.Errors(remove(unfinished(file)), remove(file))
}

// remove removes a file, and ignores a missing one.
func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
