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
	"runtime"
	"slices"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/content"
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

// importImage makes an image of busybox and the script in containerd. It returns the size.
func importImage(ctx context.Context, client *containerd.Client) (size int, err error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, install)
	}
	if err := isStatic(busybox); err != nil {
		return 0, fmt.Errorf("/bin/busybox: %w: %s", err, install)
	}
	layer, err := archive([]file{
		{name: "bin/", mode: 0o755},
		{name: "bin/busybox", mode: 0o755, data: busybox},
		{name: "bin/sh", link: "busybox", mode: 0o777},
		{name: "bin/hostname", link: "busybox", mode: 0o777},
		{name: "www/", mode: 0o755}, {name: "www/cgi-bin/", mode: 0o755},
		{name: "www/cgi-bin/function", mode: 0o755, data: []byte(script)},
	})
	if err != nil {
		return 0, err
	}
	ctx, release, err := client.WithLease(ctx) // nothing else refers to the parts yet
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, release(context.WithoutCancel(ctx))) }()
	i := images.Image{Name: image}
	if i.Target, err = store(ctx, client.ContentStore(), layer); err != nil {
		return 0, fmt.Errorf("store the image: %w", err)
	}
	if _, err := client.ImageService().Create(ctx, i); err != nil {
		return 0, err
	}
	if err := containerd.NewImage(client, i).Unpack(ctx, snapshotter); err != nil {
		return 0, fmt.Errorf("unpack %s: %w", i.Name, err)
	}
	return len(layer), nil
}

// store stores the parts of an image of one layer, and returns its manifest.
func store(ctx context.Context, to content.Store, layer []byte) (ocispec.Descriptor, error) {
	var errs []error
	put := func(mediaType string, data []byte, opts ...content.Opt) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		errs = append(errs, content.WriteBlob(ctx, to, d.Digest.String(), bytes.NewReader(data), d, opts...))
		return d
	}
	encode := func(mediaType string, v any, opts ...content.Opt) ocispec.Descriptor {
		data, err := json.Marshal(v)
		errs = append(errs, err)
		return put(mediaType, data, opts...)
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: encode(ocispec.MediaTypeImageConfig, ocispec.Image{
			Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Config: ocispec.ImageConfig{
				Env:        []string{"PATH=/bin"},
				Entrypoint: []string{"/bin/busybox", "httpd", "-f", "-p", port, "-h", "/www"},
			},
			RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
		}),
		Layers: []ocispec.Descriptor{put(ocispec.MediaTypeImageLayer, layer)},
	}
	// By these labels the manifest keeps its parts from being collected.
	d := encode(ocispec.MediaTypeImageManifest, manifest, content.WithLabels(map[string]string{
		"containerd.io/gc.ref.content.config": manifest.Config.Digest.String(),
		"containerd.io/gc.ref.content.l.0":    manifest.Layers[0].Digest.String(),
	}))
	return d, errors.Join(errs...)
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
