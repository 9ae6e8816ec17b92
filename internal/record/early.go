package record

import "bytes"

// Early is a record that was read before the container was locked.
type Early struct {
	Record *Record
	data   []byte // of the file, if the record is whole
}

// LoadEarly is Load.
func (s *Store) LoadEarly(id ID) (Early, error) {
	r, data, err := s.loadFile(Name(id))
	if r != nil {
		r.ContainerID = id
	}
	return Early{r, data}, err
}

// LoadLate is Load. It returns the record that was read early if the file is the same.
func (s *Store) LoadLate(id ID, early Early) (*Record, error) {
	if early.data != nil && early.Record.ContainerID == id {
		if data, err := s.Read(s.path(id)); err == nil && bytes.Equal(data, early.data) {
			return early.Record, nil
		}
	}
	return s.Load(id)
}
