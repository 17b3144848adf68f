"""Describes pictures with a model of Transformers: `transformers_features.py RUN_DIR MODEL PICTURE…`.

Every process that does so shares what its processor and its vision tower give: a picture that one of them has seen
costs the others neither. Without a service it still answers.
"""

import sys

from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmcached.client import Client
from mmcached.integrations.transformers import CachedImageProcessor, cached_image_features

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is in this picture?"}]}]

if __name__ == "__main__":
    run_dir, name, *pictures = sys.argv[1:]
    model = AutoModelForImageTextToText.from_pretrained(name).eval()
    processor = AutoProcessor.from_pretrained(name)
    with Client(run_dir, name="transformers") as client, cached_image_features(model, client) as features:
        images = processor.image_processor = CachedImageProcessor(processor.image_processor, client)
        text = processor.apply_chat_template(QUESTION, add_generation_prompt=True)
        for picture in pictures:
            inputs = processor(text=text, images=Image.open(picture), return_tensors="pt")
            tokens = model.generate(**inputs, max_new_tokens=16, do_sample=False)
            print(f"{picture}: {processor.decode(tokens[0, inputs['input_ids'].shape[1] :])}")
    print(f"processed here: {images.num_processed} of {images.num_images} pictures")
    print(f"encoded here: {features.num_encoded} of {features.num_images} pictures")
