package durable

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/blake2b"
)

// Identity says which execution it is. Random values, ids of children and tokens follow from Secret and Origin.
type Identity struct {
	Namespace, Queue string
	Partition        uint32
	Number           uint64
	ID               string
	Run, Origin      uint64
	Secret           []byte
}

// Path is bytes: shortest LEB128 varints, one after the other.
type Path = string

// Below is the path of an element below another one.
func Below(path Path, element uint64) Path {
	return path + string(binary.AppendUvarint(nil, element))
}

// Elements reads a path; it is none if an element is not a shortest varint of 32 bits.
func Elements(path Path) ([]uint64, error) {
	var elements []uint64
	for rest := []byte(path); len(rest) > 0; {
		element, size := binary.Uvarint(rest)
		if size <= 0 || element >= 1<<32 || len(binary.AppendUvarint(nil, element)) != size {
			return nil, fmt.Errorf("%x is no path", path)
		}
		elements, rest = append(elements, element), rest[size:]
	}
	return elements, nil
}

// Shown is `1.3`; `main` for the main task.
func Shown(path Path) string {
	elements, _ := Elements(path)
	if len(elements) == 0 {
		return "main"
	}
	words := make([]string, len(elements))
	for n, element := range elements {
		words[n] = strconv.FormatUint(element, 10)
	}
	return strings.Join(words, ".")
}

// PatchPath follows from the name alone.
func PatchPath(name string) Path {
	return Below(Below(Below("", 0), 0), uint64(binary.BigEndian.Uint32(hashed(nil, 4, []byte(name)))))
}

// StepKey is the same for all attempts of a step.
func (i Identity) StepKey(path Path, name string) string {
	return fmt.Sprintf("%s/%s/%d/%d/%d/%s/%s", i.Namespace, i.Queue, i.Partition, i.Number, i.Run, Shown(path), name)
}

// Proof shows that this execution has made a promise.
func (i Identity) Proof(path Path) []byte {
	return hashed(i.Secret, 16, number(i.Number), number(i.Origin), []byte(path))
}

// Token is MessagePack in Base64.
func (i Identity) Token(path Path) string {
	packed := []byte{0x97}
	packed = packText(packText(packed, i.Namespace), i.Queue)
	packed = packNumber(packNumber(packNumber(packed, uint64(i.Partition)), i.Number), i.Origin)
	for _, part := range [][]byte{[]byte(path), i.Proof(path)} {
		packed = append(append(packed, 0xc4, byte(len(part))), part...)
	}
	return base64.RawURLEncoding.EncodeToString(packed)
}

// UUID is the n-th one of the task or call with this path.
func (i Identity) UUID(line Path, n uint64) string {
	var parts []byte
	for _, part := range [][]byte{number(i.Origin), []byte("uuid"), []byte(line), number(n)} {
		parts = append(binary.BigEndian.AppendUint32(parts, uint32(len(part))), part...)
	}
	id := hashed(hashed(i.Secret, 16, []byte("chance")), 16, parts)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// ChildID is the id of a child that the code does not name.
func (i Identity) ChildID(path Path) string {
	run := ""
	if i.Origin != 1 {
		run = fmt.Sprintf("%d-", i.Origin)
	}
	id := fmt.Sprintf("%s/%d-%s%s", i.ID, i.Number, run, Shown(path))
	if len(id) > 255 {
		root, _, _ := strings.Cut(i.ID, "/")
		id = root + "/" + hex.EncodeToString(hashed(nil, 16, []byte(id)))
	}
	return id
}

func hashed(key []byte, size int, parts ...[]byte) []byte {
	hash, err := blake2b.New(size, key)
	if err != nil {
		panic(err) // The key is longer than 64 bytes.
	}
	for _, part := range parts {
		hash.Write(part)
	}
	return hash.Sum(nil)
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func packText(to []byte, text string) []byte {
	switch size := len(text); {
	case size < 32:
		to = append(to, 0xa0|byte(size))
	default: // Names of queues and namespaces are shorter than 256 bytes.
		to = append(to, 0xd9, byte(size))
	}
	return append(to, text...)
}

func packNumber(to []byte, n uint64) []byte {
	switch {
	case n < 1<<7:
		return append(to, byte(n))
	case n < 1<<8:
		return append(to, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(to, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(to, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(to, 0xcf), n)
}
