package conflist

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Found is a configuration and the file it was read from.
type Found struct {
	Path string
	List *libcni.NetworkConfigList
}

// Selection restricts the files that are read from a directory.
type Selection struct {
	Max  int                    // how many configurations; 0 or less means all
	Must func(path string) bool // reports whether a file is required
}

// Dir reads the configurations of a directory in name order. It skips a file
// that cannot be used and returns it in skipped, so that one bad file does not
// prevent the others. If want.Must reports that the file is required, Dir fails
// instead, because containers would be attached to other networks than before. A
// file whose network has no name cannot be used, because no container can be
// attached to it. Several files may name the same network.
func (r Reader) Dir(dir string, want Selection) (found []Found, skipped []*FileError, err error) {
	files, err := Files(dir)
	if err != nil {
		return nil, nil, err
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%w in %s", ErrNone, dir)
	}
	for _, path := range files {
		if want.Max > 0 && len(found) == want.Max {
			break
		}
		list, err := r.File(path)
		if err == nil {
			if err = RequireName(list); err != nil {
				err = &FileError{Path: path, Err: err}
			}
		}
		bad := (*FileError)(nil)
		switch {
		case !errors.As(err, &bad):
			found = append(found, Found{Path: path, List: list})
		case want.Must(path):
			return nil, nil, bad
		default:
			skipped = append(skipped, bad)
		}
	}
	if len(found) == 0 {
		errs := []error{fmt.Errorf("%w in %s that is valid", ErrNone, dir)}
		for _, s := range skipped {
			errs = append(errs, s)
		}
		return nil, skipped, joined.Errors(errs...)
	}
	return found, skipped, nil
}
