package cachedports

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/plainfile"
)

// What a Cache knows of many files is kept in a file, because to read a thousand takes
// longer than an ADD:
//
//	embedcni cachedports 1 89abcdef
//	NAME\0CONTAINER\0PORTS\0TIME\0SIZE\0…
//
// The number in the first line is the CRC-32 of the rest. The cache itself decides: a file
// that has another time or size is read. Without the kept file, or with one of another
// version, all are.
const keptHead = "embedcni cachedports 1 "

const (
	// keepFrom is the number of files from which on they are kept.
	keepFrom = 64
	// keepAfter is the number of files that are read before they are kept again. To read
	// as many takes about as long as to write what is known of a thousand.
	keepAfter = 16
	// longestName limits what is read for each file: its name and its container's ID have at
	// most 255 bytes, and a code 200.
	longestName = 1024
)

// load enters the files that are kept, if they have not changed. Those of containers on
// record count as unchanged, as they do in memory: the record has their ports.
func (c *Cache) load(n int) {
	if n < keepFrom {
		return
	}
	data, err := plainfile.ReadUpTo(c.kept, (2*n+keepFrom)*longestName)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.logger.Debug("read which ports are in libcni's cache", "error", err)
		}
		return
	}
	onRecord := c.listed()
	err = decode(string(data), func(name, code string, f *file) {
		f.ours = f.id != "" && onRecord(f.id)
		if f.ours || c.unchanged(name, f) {
			c.enter(name, f, code)
		}
	})
	if err != nil {
		c.logger.Debug("read which ports are in libcni's cache", "file", c.kept, "error", err)
	}
}

// keep writes the file for the next process, if that is worth it after reading so many.
func (c *Cache) keep(read int) {
	if read < keepAfter || len(c.files) < keepFrom {
		return
	}
	if err := plainfile.Replace(c.kept, c.encode(), 0o600); err != nil {
		c.logger.Debug("keep which ports are in libcni's cache", "error", err)
	}
}

func (c *Cache) encode() []byte {
	var body bytes.Buffer
	for name, f := range c.files {
		for _, field := range []string{name, f.id, c.byPort.Code(name), strconv.FormatInt(f.changed, 10), strconv.FormatInt(f.size, 10)} {
			body.WriteString(field)
			body.WriteByte(0)
		}
	}
	head := fmt.Sprintf("%s%08x\n", keptHead, crc32.ChecksumIEEE(body.Bytes()))
	return append([]byte(head), body.Bytes()...)
}

var errKept = errors.New("not a list of this version, or damaged")

// decode calls found for each file in a kept list. With an error it has called it for none.
func decode(data string, found func(name, code string, f *file)) error {
	head, body, _ := strings.Cut(data, "\n")
	if head != fmt.Sprintf("%s%08x", keptHead, crc32.ChecksumIEEE([]byte(body))) {
		return errKept
	}
	for body != "" {
		var fields [5]string
		for i := range fields {
			fields[i], body, _ = strings.Cut(body, "\x00")
		}
		changed, cerr := strconv.ParseInt(fields[3], 10, 64)
		size, serr := strconv.ParseInt(fields[4], 10, 64)
		if cerr != nil || serr != nil {
			return errKept // no program writes that
		}
		name := strings.Clone(fields[0]) // not the whole list for each
		found(name, strings.Clone(fields[2]), &file{id: within(name, fields[1]), changed: changed, size: size})
	}
	return nil
}
