"""Files generated from the models and words: the CRDs and the reference pages. No part of a running operator."""
