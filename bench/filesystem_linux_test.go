package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestJournal(t *testing.T) {
	dir := t.TempDir()
	device, err := deviceOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ link, options, want string }{
		"journal":       {"sda1", "rw\ndata=ordered\n", "with a journal"},
		"none":          {"sda1", "rw\nnodata=x\n", "without a journal"},
		"no such disk":  {"", "", journalUnknown},
		"not ext4's":    {"sda1", "", journalUnknown},
		"another's too": {"sda1", "rw\ncommit=5\n", "without a journal"},
	} {
		root := t.TempDir()
		for _, sub := range []string{"sys/dev/block", "proc/fs/ext4/sda1"} {
			if err := os.MkdirAll(filepath.Join(root, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if tt.link != "" {
			if err := os.Symlink("../../devices/pci/block/"+tt.link, filepath.Join(root, "sys/dev/block", device)); err != nil {
				t.Fatal(err)
			}
		}
		if tt.options != "" {
			if err := os.WriteFile(filepath.Join(root, "proc/fs/ext4/sda1/options"), []byte(tt.options), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := journalOf(root, dir); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tt.want)
		}
	}
}
