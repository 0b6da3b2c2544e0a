// Package wire reads TPM commands and responses from a stream: each says its size in its header (TPM 2.0 Part 1,
// section 18). It knows nothing else of them.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Max bounds a command or a response, in bytes.
const Max = 4096

// PowerCycle is a command code that no TPM has. It tells package tpmkeytest's simulator to restart.
const PowerCycle = 0x20ffffff

// header is the size of the header: a 16-bit tag, the 32-bit size of the whole, and a 32-bit code.
const header = 10

// noSessions is TPM_ST_NO_SESSIONS, the tag of a message without authorisations.
const noSessions = 0x8001

// Read returns the next command or response, header included.
func Read(r io.Reader) ([]byte, error) {
	buf := make([]byte, header, 512)
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(buf[2:])
	if size < header || size > Max {
		return nil, fmt.Errorf("a TPM message of %d bytes", size)
	}
	buf = append(buf, make([]byte, size-header)...)
	_, err := io.ReadFull(r, buf[header:])
	return buf, err
}

// Code returns the command code of a command, or the response code of a response.
func Code(message []byte) uint32 { return binary.BigEndian.Uint32(message[6:]) }

// Result returns a message that has nothing but a code.
func Result(code uint32) []byte {
	message := binary.BigEndian.AppendUint16(nil, noSessions)
	message = binary.BigEndian.AppendUint32(message, header)
	return binary.BigEndian.AppendUint32(message, code)
}
