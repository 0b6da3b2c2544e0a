package tpmkey

import "crypto"

// KindOf returns where a key of a [Store] lives, or one whose method Kind says so; "" for any other key.
func KindOf(key crypto.Signer) Kind {
	switch k := key.(type) {
	case *tpmKey:
		return KindTPM
	case *fileKey:
		return KindFile
	case interface{ Kind() Kind }:
		return k.Kind()
	default:
		return ""
	}
}
