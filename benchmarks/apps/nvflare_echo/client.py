"""Answer every model shifted a little, and note when it came: NVFLARE's client of ``rounds``."""

import os
import time
from pathlib import Path

import numpy as np
import nvflare.client as flare


def main() -> None:
    flare.init()
    marks = Path(os.environ["NVFLARE_ECHO_MARKS"]) / flare.get_site_name()
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        with marks.open("a") as file:
            file.write(f"{time.time()}\n")
        shifted = {name: array + np.float32(1e-3) for name, array in model.params.items()}
        answer = flare.FLModel(params=shifted, params_type=flare.ParamsType.FULL)
        answer.current_round = model.current_round
        flare.send(answer)


if __name__ == "__main__":
    main()
