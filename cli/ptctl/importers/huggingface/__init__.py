"""TRL's and Axolotl's command lines and YAML as jobs of posttrain's own trainer."""
