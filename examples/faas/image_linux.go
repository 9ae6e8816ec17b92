package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/images"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// image is the name of the function's image.
const image = "example.org/functions/echo:latest"

// function answers a request. The HTTP server of busybox runs it.
const script = `#!/bin/sh
echo "Content-Type: text/plain"
echo
echo "$QUERY_STRING from $(hostname)"
`

// importImage makes an image of busybox and the script, and gives it to containerd. It
// returns the size.
func importImage(ctx context.Context, client *containerd.Client) (size int, err error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, install)
	}
	if err := isStatic(busybox); err != nil {
		return 0, fmt.Errorf("/bin/busybox: %w: %s", err, install)
	}
	archive, err := buildImage(busybox)
	if err != nil {
		return 0, err
	}
	found, err := client.Import(ctx, bytes.NewReader(archive))
	if err != nil {
		return 0, fmt.Errorf("import: %w", err)
	}
	for _, i := range found {
		if err := unpack(ctx, client, i); err != nil {
			return 0, err
		}
	}
	return len(archive), nil
}

// isStatic returns an error if an executable needs a dynamic linker, which the image lacks.
func isStatic(executable []byte) error {
	f, err := elf.NewFile(bytes.NewReader(executable))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("it is not linked statically")
	}
	return nil
}

func unpack(ctx context.Context, client *containerd.Client, i images.Image) error {
	if err := containerd.NewImage(client, i).Unpack(ctx, snapshotter); err != nil {
		return fmt.Errorf("unpack %s: %w", i.Name, err)
	}
	return nil
}

// file is a file of a tar archive.
type file struct {
	name, link string // link is the target of a symbolic link
	mode       int64
	data       []byte
}

func archive(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		case f.data == nil:
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// buildImage returns an OCI image layout as a tar archive.
func buildImage(busybox []byte) ([]byte, error) {
	layer, err := archive([]file{
		{name: "bin/", mode: 0o755},
		{name: "bin/busybox", mode: 0o755, data: busybox},
		{name: "bin/sh", link: "busybox", mode: 0o777},
		{name: "bin/hostname", link: "busybox", mode: 0o777},
		{name: "www/", mode: 0o755}, {name: "www/cgi-bin/", mode: 0o755},
		{name: "www/cgi-bin/function", mode: 0o755, data: []byte(script)},
	})
	if err != nil {
		return nil, err
	}
	layout := &layout{}
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config: ocispec.ImageConfig{
			Env:        []string{"PATH=/bin"},
			Entrypoint: []string{"/bin/busybox", "httpd", "-f", "-p", port, "-h", "/www"},
		},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: layout.encode(ocispec.MediaTypeImageConfig, config),
		Layers: []ocispec.Descriptor{layout.add(ocispec.MediaTypeImageLayer, layer)},
	}
	entry := layout.encode(ocispec.MediaTypeImageManifest, manifest)
	entry.Annotations = map[string]string{images.AnnotationImageName: image}
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{entry},
	}
	return layout.finish(index)
}

// layout collects the files of an image layout.
type layout struct {
	files []file
	err   error
}

// add adds a blob.
func (l *layout) add(mediaType string, data []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	name := path.Join("blobs", d.Digest.Algorithm().String(), d.Digest.Encoded())
	l.files = append(l.files, file{name: name, mode: 0o644, data: data})
	return d
}

// encode adds a value as JSON.
func (l *layout) encode(mediaType string, v any) ocispec.Descriptor {
	data, err := json.Marshal(v)
	if err != nil && l.err == nil {
		l.err = err
	}
	return l.add(mediaType, data)
}

func (l *layout) finish(index ocispec.Index) ([]byte, error) {
	data, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	version, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil || l.err != nil {
		return nil, fmt.Errorf("encode an image: %w, %w", err, l.err)
	}
	return archive(append(l.files,
		file{name: ocispec.ImageLayoutFile, mode: 0o644, data: version},
		file{name: ocispec.ImageIndexFile, mode: 0o644, data: data}))
}
