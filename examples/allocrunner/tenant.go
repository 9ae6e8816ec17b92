package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The plugin "tenant" stands for one of another vendor's: it is an executable that comes
// last in a chain and passes the result on. A file named "hang" beside it makes its ADD
// hang.

// isPlugin reports whether a CNI runtime has started this program.
func isPlugin() bool { return os.Getenv("CNI_COMMAND") != "" }

// tenant is the plugin.
func tenant(in io.Reader, out io.Writer) error {
	var config struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.NewDecoder(in).Decode(&config); err != nil {
		return err
	}
	switch os.Getenv("CNI_COMMAND") {
	case "VERSION":
		_, err := fmt.Fprintf(out, `{"cniVersion": %q, "supportedVersions": ["1.0.0"]}`, config.CNIVersion)
		return err
	case "ADD":
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(self), "hang")); err == nil {
			if err := os.WriteFile(filepath.Join(filepath.Dir(self), "hangs"), nil, 0o644); err != nil {
				return err
			}
			time.Sleep(time.Hour) // until it is killed
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		_, err = out.Write(config.PrevResult)
		return err
	}
	return nil
}
